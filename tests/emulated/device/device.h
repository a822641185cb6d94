/* A CUDA device that is host memory: what the three libraries that stand for it share. */
#ifndef PEAKCAST_EMULATED_DEVICE_H
#define PEAKCAST_EMULATED_DEVICE_H

#include <stddef.h>

enum { MOST_DEVICES = 16 };

/* Bytes as a device's driver would tell them; settings come from the environment (see ../README.md). */
size_t emulated_total(void);
size_t emulated_used(int device);
int emulated_devices(void);

/* Take bytes of a device, or give them back (negative); 0 where they are not there. */
int emulated_take(int device, long long bytes);

/* Make the context of a device, once. */
void emulated_open(int device);
int emulated_current(void);
#endif
