# Each source of host kernels is compiled once per instruction set. The kernels are optimised in every
# build type. No flag may change a result, so that all instruction sets give the same bits.
function(compile_kernels instruction_set)
  set_source_files_properties(
    device/reduction_kernels_${instruction_set}.cc device/conversion_kernels_${instruction_set}.cc
    codec/lossless_kernels_${instruction_set}.cc codec/block_kernels_${instruction_set}.cc
    PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off;-fno-trapping-math;${ARGN}"
               SKIP_PRECOMPILE_HEADERS ON)
endfunction()
compile_kernels(baseline)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  compile_kernels(avx2 -mavx2 -mf16c)
  compile_kernels(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mf16c
                  -mprefer-vector-width=512)
endif()

# The kernels for devices are compiled at run time, so the library carries their text.
foreach(part numbers reduce team vectors codes sparse symbols lossless)
  set(file ${CMAKE_CURRENT_SOURCE_DIR}/device/kernels/${part}.cuh)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} text)
  set(${part}_text "R\"kernels(${text})kernels\"")
endforeach()
configure_file(device/kernels/device_text.cc.in device_text.cc @ONLY)
target_sources(hetcomm_device PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/device_text.cc)
