# The reduction kernels are one source compiled once per instruction set. They are optimised in every
# build type; no flag may change a result, so that all instruction sets give the same bits.
set(kernel_options -O3 -ffp-contract=off -fno-trapping-math)
set_source_files_properties(device/kernels_baseline.cc PROPERTIES
  COMPILE_OPTIONS "${kernel_options}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(device/kernels_avx2.cc PROPERTIES
    COMPILE_OPTIONS "${kernel_options};-mavx2;-mf16c")
  set_source_files_properties(device/kernels_avx512.cc PROPERTIES
    COMPILE_OPTIONS "${kernel_options};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mf16c;-mprefer-vector-width=512")
endif()
