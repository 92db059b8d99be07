# The torch to build against. Sets HETCOMM_TORCH_ROOT, HETCOMM_TORCH_VERSION and, for all targets,
# the C++ ABI of that torch.
set(oldest_torch 2.6)
if(NOT HETCOMM_TORCH_ROOT)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE HETCOMM_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(config ${HETCOMM_TORCH_ROOT}/share/cmake/Torch/TorchConfig.cmake)
if(NOT EXISTS ${config})
  message(FATAL_ERROR "torch not found by ${Python_EXECUTABLE}: expected an installed torch to build "
                      "hetcomm._torch; pip install torch first, or configure with "
                      "-DHETCOMM_BUILD_TORCH=OFF")
endif()
file(STRINGS ${HETCOMM_TORCH_ROOT}/version.py line REGEX "^__version__")
string(REGEX MATCH "[0-9][^'\"]*" HETCOMM_TORCH_VERSION "${line}")
if(HETCOMM_TORCH_VERSION VERSION_LESS oldest_torch)
  message(FATAL_ERROR "torch in ${HETCOMM_TORCH_ROOT}: expected ${oldest_torch} or newer, got "
                      "${HETCOMM_TORCH_VERSION}; pip install \"torch>=${oldest_torch}\", or configure "
                      "with -DHETCOMM_BUILD_TORCH=OFF")
endif()
# torch 2.6 of PyPI has the old ABI of std::string. All parts of hetcomm then have it too.
file(STRINGS ${config} old_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(old_abi)
  add_compile_definitions(_GLIBCXX_USE_CXX11_ABI=0)
endif()
message(STATUS "hetcomm._torch is for torch ${HETCOMM_TORCH_VERSION} in ${HETCOMM_TORCH_ROOT}")
