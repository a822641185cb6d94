/* The driver's entry points that PyTorch looks up: contexts, and memory mapped piece by piece, which
 * expandable segments are made of. */
#define _GNU_SOURCE
#include "device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static int context;
static const size_t GRANULARITY = (size_t)2 << 20;

CUresult cuCtxGetCurrent(CUcontext *found) { *found = (CUcontext)&context; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext wanted) { return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int number) { *device = number; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *found, CUdevice device) { return cuCtxGetCurrent(found); }
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "the emulated driver cannot";
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags flags) {
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}
/* Each range lies above the ones before, so that what follows from their order does in every run. */
CUresult cuMemAddressReserve(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags) {
    static CUdeviceptr above = (CUdeviceptr)1 << 44;
    CUdeviceptr place = wanted ? wanted : __atomic_fetch_add(&above, bytes, __ATOMIC_RELAXED);
    void *found = mmap((void *)place, bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *at = (CUdeviceptr)found;
    return found == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
    munmap((void *)at, bytes);
    return CUDA_SUCCESS;
}

struct piece {
    size_t bytes;
    int device;
};
CUresult cuMemCreate(CUmemGenericAllocationHandle *made, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags) {
    int device = properties->location.id;
    emulated_open(device);
    if (!emulated_take(device, (long long)bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct piece *piece = malloc(sizeof *piece);
    *piece = (struct piece){bytes, device};
    *made = (CUmemGenericAllocationHandle)piece;
    return CUDA_SUCCESS;
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct piece *piece = (struct piece *)handle;
    emulated_take(piece->device, -(long long)piece->bytes);
    free(piece);
    return CUDA_SUCCESS;
}
CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    return CUDA_SUCCESS; /* its pages come with the access that follows */
}
CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    return mprotect((void *)at, bytes, PROT_READ | PROT_WRITE) ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
    void *found = mmap((void *)at, bytes, PROT_NONE,
                       MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr at) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The driver's functions by name, as the runtime hands them out. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **found, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
    char second[128] = "";
    strncat(second, name, sizeof second - 4);
    strcat(second, "_v2");
    *found = dlsym(RTLD_DEFAULT, name);
    if (!*found) *found = dlsym(RTLD_DEFAULT, second);
    if (result)
        *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
