"""The emulated parts of the ABIs that vendors publish.

Facts only: names, argument types, enum values, offsets. They were compiled against the headers of
CUDA 13.0, NCCL 2.32, HIP 6.3 and RCCL 2.21, and compared with RCCL's of 2026. test_emulated_abi.py
compares them again if a header is installed. HIP's functions and errors of graphs were only read.
`{p}` is "cuda" or "hip".
"""

# [function without its prefix] -> argument types
RUNTIME = {
    "GetDeviceCount": "int*",
    "SetDevice": "int",
    "GetDevice": "int*",
    "RuntimeGetVersion": "int*",
    "DriverGetVersion": "int*",
    "GetLastError": "",
    "PeekAtLastError": "",
    "DeviceSynchronize": "",
    "DeviceGetPCIBusId": "char*, int, int",
    "DeviceGetStreamPriorityRange": "int*, int*",
    "StreamCreate": "{p}Stream_t*",
    "StreamCreateWithFlags": "{p}Stream_t*, unsigned",
    "StreamCreateWithPriority": "{p}Stream_t*, unsigned, int",
    "StreamDestroy": "{p}Stream_t",
    "StreamSynchronize": "{p}Stream_t",
    "StreamQuery": "{p}Stream_t",
    "StreamWaitEvent": "{p}Stream_t, {p}Event_t, unsigned",
    "StreamIsCapturing": "{p}Stream_t, {p}StreamCaptureStatus*",
    "StreamBeginCapture": "{p}Stream_t, {p}StreamCaptureMode",
    "StreamEndCapture": "{p}Stream_t, {p}Graph_t*",
    "GraphInstantiateWithFlags": "{p}GraphExec_t*, {p}Graph_t, unsigned long long",
    "GraphLaunch": "{p}GraphExec_t, {p}Stream_t",
    "GraphDestroy": "{p}Graph_t",
    "GraphExecDestroy": "{p}GraphExec_t",
    "ThreadExchangeStreamCaptureMode": "{p}StreamCaptureMode*",
    "EventCreate": "{p}Event_t*",
    "EventCreateWithFlags": "{p}Event_t*, unsigned",
    "EventDestroy": "{p}Event_t",
    "EventRecord": "{p}Event_t, {p}Stream_t",
    "EventQuery": "{p}Event_t",
    "EventSynchronize": "{p}Event_t",
    "EventElapsedTime": "float*, {p}Event_t, {p}Event_t",
    "Memcpy": "void*, const void*, size_t, {p}MemcpyKind",
    "MemcpyAsync": "void*, const void*, size_t, {p}MemcpyKind, {p}Stream_t",
    "Memset": "void*, int, size_t",
    "MemsetAsync": "void*, int, size_t, {p}Stream_t",
    "MemGetInfo": "size_t*, size_t*",
    "Malloc": "void**, size_t",
    "Free": "void*",
    "HostRegister": "void*, size_t, unsigned",
    "HostUnregister": "void*",
    "LaunchHostFunc": "{p}Stream_t, {p}HostFn_t, void*",
}
RUNTIME_NVIDIA = {
    "DeviceGetAttribute": "int*, cudaDeviceAttr, int",
    "PointerGetAttributes": "cudaPointerAttributes*, const void*",
    "HostAlloc": "void**, size_t, unsigned",
    "FreeHost": "void*",
    "GetDeviceProperties": "cudaDeviceProp*, int",
}
RUNTIME_AMD = {
    "DeviceGetAttribute": "int*, hipDeviceAttribute_t, int",
    "PointerGetAttributes": "hipPointerAttribute_t*, const void*",
    "HostMalloc": "void**, size_t, unsigned",
    "HostFree": "void*",
    "GetDevicePropertiesR0600": "hipDeviceProp_tR0600*, int",
    "StreamWaitValue32": "hipStream_t, void*, uint32_t, unsigned, uint32_t",
}
DRIVER_NVIDIA = {
    "cuStreamWaitValue32_v2": "CUstream, CUdeviceptr, cuuint32_t, unsigned",
}
_REDUCING = "const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, "
_MOVING = "const void*, void*, size_t, ncclDataType_t, "
CCL = {
    "GetVersion": "int*",
    "GetUniqueId": "ncclUniqueId*",
    "CommInitRank": "ncclComm_t*, int, ncclUniqueId, int",
    "CommInitRankConfig": "ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*",
    "CommSplit": "ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*",
    "CommFinalize": "ncclComm_t",
    "CommDestroy": "ncclComm_t",
    "CommAbort": "ncclComm_t",
    "CommGetAsyncError": "ncclComm_t, ncclResult_t*",
    "CommCount": "ncclComm_t, int*",
    "CommCuDevice": "ncclComm_t, int*",
    "CommUserRank": "ncclComm_t, int*",
    "CommRegister": "ncclComm_t, void*, size_t, void**",
    "CommDeregister": "ncclComm_t, void*",
    "MemAlloc": "void**, size_t",
    "MemFree": "void*",
    "RedOpCreatePreMulSum": (
        "ncclRedOp_t*, void*, ncclDataType_t, ncclScalarResidence_t, ncclComm_t"
    ),
    "RedOpDestroy": "ncclRedOp_t, ncclComm_t",
    "AllReduce": _REDUCING + "ncclComm_t, {p}Stream_t",
    "ReduceScatter": _REDUCING + "ncclComm_t, {p}Stream_t",
    "Reduce": _REDUCING + "int, ncclComm_t, {p}Stream_t",
    "AllGather": _MOVING + "ncclComm_t, {p}Stream_t",
    "Broadcast": _MOVING + "int, ncclComm_t, {p}Stream_t",
    "Send": "const void*, size_t, ncclDataType_t, int, ncclComm_t, {p}Stream_t",
    "Recv": "void*, size_t, ncclDataType_t, int, ncclComm_t, {p}Stream_t",
    "GroupStart": "",
    "GroupEnd": "",
}

# [published name, `{p}` as above] -> (value, our name). Names only one vendor has are below.
RUNTIME_VALUES = {
    "{p}Success": (0, "success"),
    "{p}ErrorInvalidValue": (1, "invalid_value"),
    "{p}ErrorMemoryAllocation": (2, "out_of_memory"),
    "{p}ErrorInitializationError": (3, "not_initialized"),
    "{p}ErrorNoDevice": (100, "no_device"),
    "{p}ErrorInvalidDevice": (101, "invalid_device"),
    "{p}ErrorInvalidResourceHandle": (400, "invalid_handle"),
    "{p}ErrorIllegalState": (401, "illegal_state"),
    "{p}ErrorNotReady": (600, "not_ready"),
    "{p}ErrorIllegalAddress": (700, "illegal_address"),
    "{p}ErrorNotSupported": (801, "not_supported"),
    "{p}ErrorStreamCaptureUnsupported": (900, "capture_unsupported"),
    "{p}ErrorStreamCaptureInvalidated": (901, "capture_invalidated"),
    "{p}ErrorStreamCaptureMerge": (902, "capture_merge"),
    "{p}ErrorStreamCaptureUnmatched": (903, "capture_unmatched"),
    "{p}ErrorStreamCaptureUnjoined": (904, "capture_unjoined"),
    "{p}ErrorStreamCaptureIsolation": (905, "capture_isolation"),
    "{p}ErrorCapturedEvent": (907, "captured_event"),
    "{p}ErrorStreamCaptureWrongThread": (908, "capture_wrong_thread"),
    "{p}StreamCaptureModeGlobal": (0, "capture_global"),
    "{p}StreamCaptureModeThreadLocal": (1, "capture_thread_local"),
    "{p}StreamCaptureModeRelaxed": (2, "capture_relaxed"),
    "{p}StreamCaptureStatusNone": (0, "capture_none"),
    "{p}StreamCaptureStatusActive": (1, "capture_active"),
    "{p}StreamCaptureStatusInvalidated": (2, "capture_broken"),
    "{p}MemoryTypeUnregistered": (0, "memory_unregistered"),
    "{p}MemoryTypeHost": (1, "memory_host"),
    "{p}MemoryTypeDevice": (2, "memory_device"),
    "{p}MemcpyHostToHost": (0, "host_to_host"),
    "{p}MemcpyHostToDevice": (1, "host_to_device"),
    "{p}MemcpyDeviceToHost": (2, "device_to_host"),
    "{p}MemcpyDeviceToDevice": (3, "device_to_device"),
    "{p}MemcpyDefault": (4, "copy_default"),
}
VALUES_NVIDIA = {
    "cudaErrorNotPermitted": (800, "not_permitted"),
    "CU_STREAM_WAIT_VALUE_GEQ": (0, "wait_greater_or_equal"),
    "CU_STREAM_WAIT_VALUE_EQ": (1, "wait_equal"),
    "CU_STREAM_WAIT_VALUE_AND": (2, "wait_and"),
    "CU_STREAM_WAIT_VALUE_NOR": (3, "wait_nor"),
}
VALUES_AMD = {
    "hipStreamWaitValueGte": (0, "wait_greater_or_equal"),
    "hipStreamWaitValueEq": (1, "wait_equal"),
    "hipStreamWaitValueAnd": (2, "wait_and"),
    "hipStreamWaitValueNor": (3, "wait_nor"),
}
AMD_NAMES = {"hipErrorInvalidResourceHandle": "hipErrorInvalidHandle"}
CCL_VALUES = {
    "ncclSuccess": (0, "ccl_success"),
    "ncclUnhandledCudaError": (1, "ccl_unhandled_runtime_error"),
    "ncclSystemError": (2, "ccl_system_error"),
    "ncclInternalError": (3, "ccl_internal_error"),
    "ncclInvalidArgument": (4, "ccl_invalid_argument"),
    "ncclInvalidUsage": (5, "ccl_invalid_usage"),
    "ncclRemoteError": (6, "ccl_remote_error"),
    "ncclInProgress": (7, "ccl_in_progress"),
    "ncclInt8": (0, "type_int8"),
    "ncclUint8": (1, "type_uint8"),
    "ncclInt32": (2, "type_int32"),
    "ncclUint32": (3, "type_uint32"),
    "ncclInt64": (4, "type_int64"),
    "ncclUint64": (5, "type_uint64"),
    "ncclFloat16": (6, "type_float16"),
    "ncclFloat32": (7, "type_float32"),
    "ncclFloat64": (8, "type_float64"),
    "ncclBfloat16": (9, "type_bfloat16"),
    "ncclFloat8e4m3": (10, "type_float8e4m3"),
    "ncclFloat8e5m2": (11, "type_float8e5m2"),
    "ncclSum": (0, "op_sum"),
    "ncclProd": (1, "op_product"),
    "ncclMax": (2, "op_max"),
    "ncclMin": (3, "op_min"),
    "ncclAvg": (4, "op_average"),
    "ncclNumOps": (5, "op_first_own"),
    "ncclScalarDevice": (0, "scalar_in_device_memory"),
    "ncclScalarHostImmediate": (1, "scalar_immediate"),
    "NCCL_CONFIG_UNDEF_INT": (-(2**31), "kUndefined"),
    "NCCL_SPLIT_NOCOLOR": (-1, "kNoColor"),
    "NCCL_API_MAGIC": (0xCAFEBEEF, "kConfigMagic"),
}

SINCE_2_24 = {"ncclFloat8e4m3", "ncclFloat8e5m2", "NCCL_API_MAGIC"}

# [published struct] -> our struct, then [published field] -> (offset, our field)
CONFIG = {
    "size": (0, "size"),
    "magic": (8, "magic"),
    "version": (12, "version"),
    "blocking": (16, "blocking"),
    "cgaClusterSize": (20, "cga_cluster_size"),
    "minCTAs": (24, "min_ctas"),
    "maxCTAs": (28, "max_ctas"),
    "netName": (32, "net_name"),
    "splitShare": (40, "split_share"),
}
ATTRIBUTES = {
    "type": (0, "type"),
    "device": (4, "device"),
    "devicePointer": (8, "device_pointer"),
    "hostPointer": (16, "host_pointer"),
}
PROPERTIES = {"name": (0, "name"), "totalGlobalMem": (288, "global_memory")}
