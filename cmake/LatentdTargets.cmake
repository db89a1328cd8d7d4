# How every target of latentd is built: one place for the language level, the warnings and the test helper.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

set(LATENTD_SANITIZE "" CACHE STRING "Sanitizers to build with: address,undefined or thread")
option(LATENTD_FUZZ "Build the libFuzzer targets (Clang only)" OFF)

# Latent caches promise the same bits for every batch, chunking and thread count: the compiler may not contract a*b+c.
set(options -Wall -Wextra -Werror -Wno-unused-parameter -Wno-missing-field-initializers -ffp-contract=off)
add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${options}>")
# In CUDA sources these are for the code of the host; a kernel's own sums have one order for every batch, contracted or not.
list(JOIN options "," options)
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${options}>")
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  add_compile_options(-Wthread-safety)
endif()
if(LATENTD_SANITIZE)
  add_compile_options(-fsanitize=${LATENTD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LATENTD_SANITIZE})
endif()
if(LATENTD_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# latentd_library(NAME SOURCES a.cc b.cc DEPENDS x y): a static library whose headers are included from the root.
function(latentd_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPENDS})
  add_dependencies(${name} latentd_version)  # base/version.h exists before anything that includes it is compiled
endfunction()

# latentd_program(NAME SOURCES main.cc DEPENDS x): an installed program in build/<preset>/bin.
function(latentd_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# latentd_test(NAME SOURCES a_test.cc DEPENDS x): one GoogleTest program, one ctest entry of a few seconds with the label `quick`,
# which is what tools/test runs. Tests that take minutes have the label `soak` and run in tools/test --full.
function(latentd_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set(timeout 300)
  if(LATENTD_SANITIZE)
    set(timeout 1800)  # tens of times slower
  endif()
  set_tests_properties(${name} PROPERTIES LABELS quick TIMEOUT ${timeout})
  if(LATENTD_SANITIZE STREQUAL thread)
    # OpenBLAS is not instrumented: ThreadSanitizer cannot see how its threads wait for each other.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT OPENBLAS_NUM_THREADS=1)
  endif()
endfunction()

# latentd_fuzz(NAME SOURCES a_fuzz.cc DEPENDS x): one libFuzzer program in build/fuzz/fuzz, for when LATENTD_FUZZ is on (the preset `fuzz`).
function(latentd_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS})
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
endfunction()
