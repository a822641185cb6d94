/* NVIDIA's management library, as far as used bytes are read from it. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct memory {
    unsigned long long total, free, used;
};

static int numbers[MOST_DEVICES];

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **found) {
    unsigned device; /* the first byte of an emulated device's UUID is its number */
    if (sscanf(uuid, "GPU-%2x", &device) != 1 || device >= MOST_DEVICES) return 2;
    numbers[device] = (int)device;
    *found = &numbers[device];
    return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **found) {
    unsigned device;
    if (sscanf(bus, "%*x:%2x", &device) != 1 || device >= MOST_DEVICES) return 2;
    numbers[device] = (int)device;
    *found = &numbers[device];
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *found) {
    found->total = emulated_total();
    found->used = emulated_used(*(int *)device);
    found->free = found->total - found->used;
    return 0;
}

/* What torch's message of a full device asks for: the one process that is here. */
struct process {
    unsigned pid;
    unsigned long long used;
};
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct process *found) {
    if (*count < 1) return 7; /* NVML_ERROR_INSUFFICIENT_SIZE */
    found[0] = (struct process){(unsigned)getpid(), emulated_used(*(int *)device)};
    *count = 1;
    return 0;
}

/* Looked up with them, and called by nothing here. */
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 3; } /* NVML_ERROR_NOT_SUPPORTED */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return 0; }

const char *nvmlErrorString(int code) { return code == 2 ? "Invalid Argument" : "no error"; }
