/* Driver entry points that torch's loaders must find: most of them launch or load kernels, of which
 * there are none; the others share memory between processes. Their parameters do not matter. */
enum { NOT_SUPPORTED = 801 }; /* CUDA_ERROR_NOT_SUPPORTED */

#define REFUSED(name) \
    int name(void) { return NOT_SUPPORTED; }

REFUSED(cuFuncGetAttribute)
REFUSED(cuFuncSetAttribute)
REFUSED(cuFuncSetCacheConfig)
REFUSED(cuLaunchCooperativeKernel)
REFUSED(cuLaunchKernel)
REFUSED(cuLinkAddData_v2)
REFUSED(cuLinkComplete)
REFUSED(cuLinkCreate_v2)
REFUSED(cuMemExportToShareableHandle)
REFUSED(cuMemGetAllocationPropertiesFromHandle)
REFUSED(cuMemImportFromShareableHandle)
REFUSED(cuMemRetainAllocationHandle)
REFUSED(cuMemsetD32Async)
REFUSED(cuModuleGetFunction)
REFUSED(cuModuleLoad)
REFUSED(cuModuleLoadData)
REFUSED(cuModuleLoadDataEx)
REFUSED(cuModuleUnload)
REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
REFUSED(cuPointerGetAttribute)
REFUSED(cuStreamWriteValue32)
REFUSED(cuTensorMapEncodeTiled)
