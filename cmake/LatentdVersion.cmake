# latentd_version: writes base/version.h into the build folder at every build, and touches it only when the commit changed.

if(CMAKE_SCRIPT_MODE_FILE)
  execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse --short=9 HEAD
    OUTPUT_VARIABLE COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(COMMIT "no git")  # a source archive
  endif()
  configure_file(${SOURCE_DIR}/base/version.h.in ${OUTPUT} @ONLY)
  return()
endif()

add_custom_target(latentd_version
  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
          -DOUTPUT=${PROJECT_BINARY_DIR}/base/version.h -P ${CMAKE_CURRENT_LIST_FILE}
  BYPRODUCTS ${PROJECT_BINARY_DIR}/base/version.h
  COMMENT "" VERBATIM)
