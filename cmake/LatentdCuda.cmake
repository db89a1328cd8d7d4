# The CUDA compiler and cuBLASLt, for the preset `cuda`: nvcc from CUDACXX, from the venv that tools/install-cuda makes, or from
# the PATH. Without CMake's FindCUDAToolkit: Debian 12's fails with CUDA 13.

option(LATENTD_CUDA "Build the CUDA backend" OFF)
if(NOT LATENTD_CUDA)
  return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  file(GLOB venv ${PROJECT_SOURCE_DIR}/build/cuda-venv/lib/python3*/site-packages/nvidia/cu13/bin)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ${venv})
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "LATENTD_CUDA is ON and there is no nvcc: run tools/install-cuda, or name one in CUDACXX")
  endif()
endif()

# Machine code for A100, for L4 and L40, and for H100 and H200.
set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real)
if(CCACHE_PROGRAM)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # which Debian 12's CMake does not know of this nvcc
endif()

get_filename_component(cuda_bin ${CMAKE_CUDA_COMPILER} DIRECTORY)
find_path(LATENTD_CUDA_INCLUDE cublasLt.h HINTS ${cuda_bin}/../include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} REQUIRED)
find_library(LATENTD_CUBLASLT cublasLt HINTS ${cuda_bin}/../lib64 ${cuda_bin}/../lib REQUIRED)
