# The table of vendors is hetcomm/vendors.toml, which Python reads too; here it becomes C++.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/hetcomm/vendors.toml ${CMAKE_CURRENT_SOURCE_DIR}/device/vendors.py)
execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/device/vendors.py rows
                OUTPUT_VARIABLE vendor_rows COMMAND_ERROR_IS_FATAL ANY)
configure_file(device/vendors.cc.in vendors.cc @ONLY)
target_sources(hetcomm_device PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/vendors.cc)
