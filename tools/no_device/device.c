/* A CUDA device that runs no kernels: the functions of CUDA's runtime and driver that PyTorch calls, in front of NVIDIA's own.
 *
 * Memory of the device is memory of the host, copies copy, streams and events are in order, and kernels are not run. So a CUDA
 * build of PyTorch finds a device on a machine without one: fake tensors run forward and backward there, and the allocator,
 * generators, streams and events are PyTorch's own. `tools/cuda_without_a_device.py` compiles this file and starts a program
 * under it; REKINDLE_NO_DEVICE names the device, "h100" or "a100". cuBLAS and cuDNN find no device, and raise an error.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver_types.h"

#define OK cudaSuccess
#define DOES_NOTHING(name) cudaError_t name(void) { return OK; }

enum { VERSION = 13000, IN_FRONT = 512 };
static const size_t TOTAL = (size_t)80 << 30;
static size_t used;
static __thread int current;

/* ---- the device ---- */
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return OK; }
cudaError_t cudaGetDevice(int *d) { *d = current; return OK; }
cudaError_t cudaSetDevice(int d) { current = d; return OK; }
cudaError_t cudaDriverGetVersion(int *v) { *v = VERSION; return OK; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = VERSION; return OK; }
cudaError_t cudaDeviceGetAttribute(int *v, int a, int d) { *v = 0; return OK; }
cudaError_t cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 0; return OK; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) {
  if (low) *low = 0;
  if (high) *high = -5;
  return OK;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  const char *name = getenv("REKINDLE_NO_DEVICE");
  int is_a100 = name && !strcmp(name, "a100");
  memset(p, 0, sizeof *p);
  strcpy(p->name, is_a100 ? "NVIDIA A100, no device" : "NVIDIA H100, no device");
  p->major = is_a100 ? 8 : 9;
  p->multiProcessorCount = is_a100 ? 108 : 132;
  p->totalGlobalMem = TOTAL;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 160 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = p->totalConstMem = 64 << 10;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->unifiedAddressing = p->concurrentKernels = 1;
  p->l2CacheSize = 40 << 20;
  p->textureAlignment = 512;
  return OK;
}

/* ---- memory: the host's, with its size in front ---- */
cudaError_t cudaMalloc(void **p, size_t n) {
  void *at;
  *p = NULL;
  if (used + n > TOTAL || posix_memalign(&at, IN_FRONT, n + IN_FRONT)) return cudaErrorMemoryAllocation;
  *(size_t *)at = n;
  used += n;
  *p = (char *)at + IN_FRONT;
  return OK;
}
cudaError_t cudaFree(void *p) {
  if (p) {
    void *at = (char *)p - IN_FRONT;
    used -= *(size_t *)at;
    free(at);
  }
  return OK;
}
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
  return posix_memalign(p, IN_FRONT, n) ? cudaErrorMemoryAllocation : OK;
}
cudaError_t cudaFreeHost(void *p) { free(p); return OK; }
cudaError_t cudaMemGetInfo(size_t *left, size_t *total) { *left = TOTAL - used; *total = TOTAL; return OK; }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, int kind) { memmove(to, from, n); return OK; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, int kind, void *s) { memmove(to, from, n); return OK; }
cudaError_t cudaMemset(void *to, int x, size_t n) { memset(to, x, n); return OK; }
cudaError_t cudaMemsetAsync(void *to, int x, size_t n, void *s) { memset(to, x, n); return OK; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) { memset(a, 0, sizeof *a); return OK; }

/* ---- streams and events: a time each, which is an event's ---- */
static cudaError_t made(void **p) { *p = calloc(1, sizeof(struct timespec)); return *p ? OK : cudaErrorMemoryAllocation; }
static cudaError_t ended(void *p) { free(p); return OK; }
cudaError_t cudaStreamCreate(void **s) { return made(s); }
cudaError_t cudaStreamCreateWithPriority(void **s, unsigned flags, int priority) { return made(s); }
cudaError_t cudaStreamDestroy(void *s) { return ended(s); }
cudaError_t cudaStreamIsCapturing(void *s, int *v) { *v = 0; return OK; }
cudaError_t cudaStreamGetCaptureInfo(void *s, int *v) { *v = 0; return OK; }
cudaError_t cudaStreamGetPriority(void *s, int *v) { *v = 0; return OK; }
DOES_NOTHING(cudaStreamQuery)
DOES_NOTHING(cudaStreamSynchronize)
DOES_NOTHING(cudaStreamWaitEvent)
DOES_NOTHING(cudaDeviceSynchronize)
DOES_NOTHING(cudaThreadExchangeStreamCaptureMode)
cudaError_t cudaEventCreate(void **e) { return made(e); }
cudaError_t cudaEventCreateWithFlags(void **e, unsigned flags) { return made(e); }
cudaError_t cudaEventDestroy(void *e) { return ended(e); }
cudaError_t cudaEventRecord(void *e, void *s) { clock_gettime(CLOCK_MONOTONIC, e); return OK; }
cudaError_t cudaEventRecordWithFlags(void *e, void *s, unsigned flags) { return cudaEventRecord(e, s); }
cudaError_t cudaEventElapsedTime(float *ms, void *begin, void *end) {
  struct timespec *a = begin, *b = end;
  *ms = (b->tv_sec - a->tv_sec) * 1e3f + (b->tv_nsec - a->tv_nsec) / 1e6f;
  return OK;
}
DOES_NOTHING(cudaEventQuery)
DOES_NOTHING(cudaEventSynchronize)

/* ---- kernels: none runs ---- */
DOES_NOTHING(cudaLaunchKernel)
DOES_NOTHING(__cudaLaunchKernel)
DOES_NOTHING(cudaLaunchKernelExC)
DOES_NOTHING(cudaFuncSetAttribute)
DOES_NOTHING(cudaGetLastError)
DOES_NOTHING(cudaPeekAtLastError)
cudaError_t __cudaGetKernel(const void **kernel, const void *function) { *kernel = function; return OK; }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *function) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  return OK;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n) { *n = 1; return OK; }

/* ---- the driver: libcaffe2_nvrtc.so needs the names ---- */
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = VERSION; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(void **c) { *c = &current; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "there is no device"; return 0; }

enum { NOT_SUPPORTED = 801 };
#define IS_MISSING(name) int name(void) { return NOT_SUPPORTED; }
IS_MISSING(cuCtxSetCurrent)
IS_MISSING(cuDeviceGetAttribute)
IS_MISSING(cuDevicePrimaryCtxRetain)
IS_MISSING(cuFuncGetAttribute)
IS_MISSING(cuFuncSetAttribute)
IS_MISSING(cuFuncSetCacheConfig)
IS_MISSING(cuLaunchCooperativeKernel)
IS_MISSING(cuLaunchKernel)
IS_MISSING(cuLinkAddData_v2)
IS_MISSING(cuLinkComplete)
IS_MISSING(cuLinkCreate_v2)
IS_MISSING(cuModuleGetFunction)
IS_MISSING(cuModuleLoad)
IS_MISSING(cuModuleLoadData)
IS_MISSING(cuModuleLoadDataEx)
IS_MISSING(cuModuleUnload)
IS_MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
IS_MISSING(cuPointerGetAttribute)
IS_MISSING(cuTensorMapEncodeTiled)
