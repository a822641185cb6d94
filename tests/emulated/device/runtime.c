/* The CUDA runtime's entry points that PyTorch calls, on host memory.
 *
 * Work is done when it is asked for, so that streams have nothing to wait for; with EMULATED_LAG
 * set, an event stays pending until it, its stream or the device is waited for, as on a device that
 * is behind. A kernel does not exist: launching one fails. What is not here, the real runtime
 * answers, which finds no driver. */
#define _GNU_SOURCE
#include "device.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define SEGMENT (2 * MIB) /* the granularity of device memory */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t taken[MOST_DEVICES];
static int opened[MOST_DEVICES];
static __thread int current;
static __thread cudaError_t last;

static size_t setting(const char *name, size_t otherwise) {
    const char *value = getenv(name);
    return value ? strtoull(value, NULL, 10) : otherwise;
}

static cudaError_t failed(cudaError_t error) { return last = error; }

/* ---- bytes ---- */

size_t emulated_total(void) { return setting("EMULATED_BYTES", (size_t)141 << 30); }
int emulated_devices(void) { return (int)setting("EMULATED_DEVICES", 1); }
int emulated_current(void) { return current; }
void emulated_open(int device) { opened[device] = 1; }

size_t emulated_used(int device) {
    size_t context = opened[device] ? setting("EMULATED_CONTEXT", 512 * MIB) : 0;
    return setting("EMULATED_FOREIGN", 4 * MIB) + context + taken[device];
}

int emulated_take(int device, long long bytes) {
    pthread_mutex_lock(&lock);
    int fits = bytes <= 0 || emulated_used(device) + (size_t)bytes <= emulated_total();
    if (fits) taken[device] += (size_t)bytes;
    pthread_mutex_unlock(&lock);
    return fits;
}

struct block {
    char *at;
    size_t bytes;
    int device;
    struct block *next;
};
static struct block *blocks;

cudaError_t cudaMalloc(void **at, size_t bytes) {
    size_t whole = (bytes + SEGMENT - 1) / SEGMENT * SEGMENT;
    emulated_open(current);
    *at = NULL;
    if (!emulated_take(current, (long long)whole)) return failed(cudaErrorMemoryAllocation);
    struct block *block = malloc(sizeof *block);
    *block = (struct block){mmap(NULL, whole, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0),
                            whole, current, NULL};
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
    *at = block->at;
    return cudaSuccess;
}

cudaError_t cudaFree(void *at) {
    if (!at) return cudaSuccess;
    struct block *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct block **link = &blocks; *link; link = &(*link)->next)
        if ((*link)->at == at) {
            found = *link;
            *link = found->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    if (!found) return failed(cudaErrorInvalidValue);
    emulated_take(found->device, -(long long)found->bytes);
    munmap(found->at, found->bytes);
    free(found);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    emulated_open(current);
    *total = emulated_total();
    *free_bytes = *total - emulated_used(current);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *found, const void *pointer) {
    memset(found, 0, sizeof *found);
    found->type = cudaMemoryTypeUnregistered;
    pthread_mutex_lock(&lock);
    for (struct block *block = blocks; block; block = block->next)
        if ((char *)pointer >= block->at && (char *)pointer < block->at + block->bytes) {
            found->type = cudaMemoryTypeDevice;
            found->device = block->device;
            found->devicePointer = (void *)pointer;
        }
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags) {
    *at = malloc(bytes);
    return *at ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void *at) { free(at); return cudaSuccess; }
cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void *at) { return cudaSuccess; }

cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
    memmove(to, from, n);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    return cudaMemcpy(to, from, n, kind);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                size_t n, cudaStream_t stream) {
    return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}
cudaError_t cudaMemset(void *at, int value, size_t n) { memset(at, value, n); return cudaSuccess; }
cudaError_t cudaMemsetAsync(void *at, int value, size_t n, cudaStream_t stream) {
    return cudaMemset(at, value, n);
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count) { *count = emulated_devices(); return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= emulated_devices()) return failed(cudaErrorInvalidDevice);
    current = device;
    emulated_open(device);
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void);

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *found, int device) {
    memset(found, 0, sizeof *found);
    strcpy(found->name, "emulated H200");
    for (int i = 0; i < 16; i++) found->uuid.bytes[i] = (char)(i ? 0x10 + i : device);
    found->totalGlobalMem = emulated_total();
    found->major = 9; /* Hopper's figures */
    found->multiProcessorCount = 132;
    found->maxThreadsPerMultiProcessor = 2048;
    found->maxThreadsPerBlock = 1024;
    found->warpSize = 32;
    found->sharedMemPerBlock = 48 << 10;
    found->sharedMemPerBlockOptin = 227 << 10;
    found->sharedMemPerMultiprocessor = 228 << 10;
    found->regsPerBlock = found->regsPerMultiprocessor = 64 << 10;
    found->l2CacheSize = 50 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, device);
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? properties.major
             : attribute == cudaDevAttrMultiProcessorCount  ? properties.multiProcessorCount
             : attribute == cudaDevAttrWarpSize             ? properties.warpSize
                                                            : 0;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) { return cudaSuccess; }

/* ---- streams and events ---- */

struct event {
    struct timespec at;
    int pending;
    cudaStream_t stream;
    struct event *next;
};
static struct event *events;

static void catch_up(cudaStream_t stream, int all) {
    pthread_mutex_lock(&lock);
    for (struct event *event = events; event; event = event->next)
        if (all || event->stream == stream) event->pending = 0;
    pthread_mutex_unlock(&lock);
}

cudaError_t cudaDeviceSynchronize(void) { catch_up(NULL, 1); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    *stream = malloc(1);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { free(stream); return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { catch_up(stream, 0); return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count) {
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *made, unsigned flags) {
    struct event *event = calloc(1, sizeof *event);
    pthread_mutex_lock(&lock);
    event->next = events;
    events = event;
    pthread_mutex_unlock(&lock);
    *made = (cudaEvent_t)event;
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *made) { return cudaEventCreateWithFlags(made, 0); }
cudaError_t cudaEventRecord(cudaEvent_t recorded, cudaStream_t stream) {
    struct event *event = (struct event *)recorded;
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    event->stream = stream;
    event->pending = getenv("EMULATED_LAG") != NULL;
    return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    return ((struct event *)event)->pending ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    ((struct event *)event)->pending = 0;
    return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    struct timespec a = ((struct event *)from)->at, b = ((struct event *)to)->at;
    *ms = (float)(b.tv_sec - a.tv_sec) * 1e3f + (float)(b.tv_nsec - a.tv_nsec) * 1e-6f;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    for (struct event **link = &events; *link; link = &(*link)->next)
        if (*link == (struct event *)event) {
            *link = (*link)->next;
            break;
        }
    pthread_mutex_unlock(&lock);
    free(event);
    return cudaSuccess;
}

/* ---- kernels, which do not exist ---- */

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared, cudaStream_t stream) {
    return failed(cudaErrorNotSupported);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
                               size_t shared, cudaStream_t stream) {
    return failed(cudaErrorNotSupported);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **arguments) {
    return failed(cudaErrorNotSupported);
}

/* ---- errors ---- */

cudaError_t cudaPeekAtLastError(void) { return last; }
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
const char *cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : error == cudaErrorNotSupported   ? "cudaErrorNotSupported"
           : error == cudaSuccess             ? "cudaSuccess"
                                              : "cudaErrorUnknown";
}
const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNotSupported   ? "the emulated device has no kernels"
           : error == cudaSuccess             ? "no error"
                                              : "an error of the emulated device";
}
