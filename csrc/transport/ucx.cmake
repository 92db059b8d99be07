# UCX is loaded at run time; only its headers are needed to compile, from the libucx wheel or the
# system.
if(NOT HETCOMM_UCX_INCLUDE)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import pathlib, libucx; print(pathlib.Path(libucx.__file__).parent / 'include')"
    OUTPUT_VARIABLE wheel_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(HETCOMM_UCX_INCLUDE ucp/api/ucp.h HINTS ${wheel_include})
endif()
if(NOT HETCOMM_UCX_INCLUDE)
  message(FATAL_ERROR "UCX headers not found: expected ucp/api/ucp.h from the libucx-cu13 wheel or a "
                      "system package; pip install libucx-cu13, or set HETCOMM_UCX_INCLUDE")
endif()
target_include_directories(hetcomm_transport PRIVATE ${HETCOMM_UCX_INCLUDE})
