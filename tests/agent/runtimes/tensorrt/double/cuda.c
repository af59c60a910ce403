/* This is a double of the CUDA driver. It has the calls that latfarm makes, and keeps the state
 * that the real driver keeps.
 *
 * It refuses what the real driver refuses: calls before cuInit or without a current context,
 * invalid or destroyed handles, copies past the end of memory or in the wrong direction, waiting
 * while a stream is captured, and times of events that have not happened. Work takes simulated GPU
 * time: each stream has its own timeline, and waiting for a stream takes real time. Results and
 * error numbers are those of the "CUDA Driver API" manual.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
  INVALID_DEVICE = 101, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_READY = 600,
  CONTEXT_ACTIVE = 708, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901
};
enum kind { MEMORY = 1, HOST_MEMORY, STREAM, EVENT, GRAPH, EXEC };

struct work { double us; int count; uintptr_t *pointers; size_t *sizes; struct work *next; };
struct object {
  enum kind kind;
  char *data;            /* of memory: its address is the handle; others use the object's address */
  size_t size;
  double until_us;       /* of a stream: when its work ends; of an event: when it happened */
  int capturing, broken; /* of a stream: whether it is captured; whether the capture is invalid */
  int recorded;          /* of an event: whether it was recorded */
  struct work *works;    /* the work in a graph, or in a stream while it is captured */
  struct object *next;
};

static struct object *objects;
static size_t used_bytes;
static int initialised, active, sticky, next_fault;
static unsigned flags;
static __thread int current;
static int context_mark;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static size_t total_bytes(void) {
  const char *text = getenv("LATFARM_DOUBLE_MEMORY");
  return text ? strtoull(text, NULL, 10) : (size_t)1 << 30;
}

static int ready(void) {
  if (sticky) return sticky;
  if (!initialised) return NOT_INITIALIZED;
  return current ? OK : INVALID_CONTEXT;
}

static struct object *find(const void *handle, enum kind kind) {
  for (struct object *o = objects; o; o = o->next)
    if (o == handle && o->kind == kind) return o;
  return NULL;
}

/* Return the device or host memory that contains all of these bytes, or NULL. */
static struct object *holding(uintptr_t address, size_t size) {
  for (struct object *o = objects; o; o = o->next) {
    if (o->kind != MEMORY && o->kind != HOST_MEMORY) continue;
    uintptr_t first = (uintptr_t)o->data;
    if (address >= first && address + size <= first + o->size) return o;
  }
  return NULL;
}

/* Return whether any of these bytes lies in device memory, which the host must not access. */
static int on_device(uintptr_t address, size_t size) {
  for (struct object *o = objects; o; o = o->next) {
    uintptr_t first = (uintptr_t)o->data;
    if (o->kind == MEMORY && address < first + o->size && first < address + size) return 1;
  }
  return 0;
}

static struct object *make(enum kind kind) {
  struct object *o = calloc(1, sizeof *o);
  o->kind = kind;
  o->next = objects;
  objects = o;
  return o;
}

static void forget_works(struct work *w) {
  while (w) {
    struct work *next = w->next;
    free(w->pointers);
    free(w->sizes);
    free(w);
    w = next;
  }
}

static int drop(struct object *gone) {
  if (!gone) return INVALID_HANDLE;
  for (struct object **at = &objects; *at; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      break;
    }
  if (gone->kind == MEMORY) used_bytes -= gone->size;
  forget_works(gone->works);
  free(gone->data);
  free(gone);
  return OK;
}

static void busy(struct object *stream, double us) {
  double now = now_us();
  stream->until_us = (stream->until_us > now ? stream->until_us : now) + us;
}

#define ENTER int code = OK; pthread_mutex_lock(&lock)
#define LEAVE(value) do { code = (value); pthread_mutex_unlock(&lock); return code; } while (0)
#define READY do { if (ready()) LEAVE(ready()); } while (0)

int cuInit(unsigned value) {
  ENTER;
  const char *text = getenv("LATFARM_DOUBLE_DEVICES");
  if (value) LEAVE(INVALID_VALUE);
  if (text && atoi(text) == 0) LEAVE(NO_DEVICE);
  initialised = 1;
  LEAVE(OK);
}

int cuDriverGetVersion(int *version) { *version = 12060; return OK; }

int cuGetErrorName(int error, const char **name) {
  switch (error) {
    case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; return OK;
    case NO_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; return OK;
    case NOT_INITIALIZED: *name = "CUDA_ERROR_NOT_INITIALIZED"; return OK;
    case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; return OK;
    case INVALID_CONTEXT: *name = "CUDA_ERROR_INVALID_CONTEXT"; return OK;
    case INVALID_HANDLE: *name = "CUDA_ERROR_INVALID_HANDLE"; return OK;
    case NOT_READY: *name = "CUDA_ERROR_NOT_READY"; return OK;
    case 700: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return OK;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return OK;
    case CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; return OK;
    case CAPTURE_INVALIDATED: *name = "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"; return OK;
  }
  return INVALID_VALUE;
}

int cuDeviceGetCount(int *count) { if (!initialised) return NOT_INITIALIZED; *count = 1; return OK; }

int cuDeviceGet(int *device, int ordinal) {
  if (!initialised) return NOT_INITIALIZED;
  if (ordinal) return INVALID_DEVICE;
  *device = 0;
  return OK;
}

int cuDeviceGetName(char *name, int size, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  snprintf(name, size, "Double GPU");
  return OK;
}

int cuDeviceGetPCIBusId(char *text, int size, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  snprintf(text, size, "0000:65:00.0");
  return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  switch (attribute) {
    case 18: *value = 1; return OK;        /* the GPU is integrated */
    case 38: *value = 256 << 10; return OK; /* size of the L2 cache in bytes */
    case 75: *value = 8; return OK;
    case 76: *value = 7; return OK;
  }
  return INVALID_VALUE;
}

int cuDeviceTotalMem_v2(size_t *size, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  *size = total_bytes();
  return OK;
}

int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned value) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  if (active) return CONTEXT_ACTIVE;
  flags = value;
  return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  if (!initialised) return NOT_INITIALIZED;
  if (device) return INVALID_DEVICE;
  active = 1;
  *context = &context_mark;
  return OK;
}

int cuCtxSetCurrent(void *context) {
  if (!initialised) return NOT_INITIALIZED;
  if (context != &context_mark) return INVALID_CONTEXT;
  current = 1;
  return OK;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
  ENTER;
  READY;
  if (!size) LEAVE(INVALID_VALUE);
  if (used_bytes + size > total_bytes()) LEAVE(NO_MEMORY);
  char *data = malloc(size);
  if (!data) LEAVE(NO_MEMORY);
  struct object *o = make(MEMORY);
  o->data = data;
  o->size = size;
  used_bytes += size;
  *address = (uintptr_t)data;
  LEAVE(OK);
}

int cuMemFree_v2(uint64_t address) {
  ENTER;
  READY;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == MEMORY && (uintptr_t)o->data == address) LEAVE(drop(o));
  LEAVE(INVALID_VALUE);
}

int cuMemAllocHost_v2(void **address, size_t size) {
  ENTER;
  READY;
  if (!size) LEAVE(INVALID_VALUE);
  char *data = malloc(size);
  if (!data) LEAVE(NO_MEMORY);
  struct object *o = make(HOST_MEMORY);
  o->data = data;
  o->size = size;
  *address = data;
  LEAVE(OK);
}

int cuMemFreeHost(void *address) {
  ENTER;
  READY;
  for (struct object *o = objects; o; o = o->next)
    if (o->kind == HOST_MEMORY && o->data == address) LEAVE(drop(o));
  LEAVE(INVALID_VALUE);
}

static int copy(void *target, const void *source, size_t size, void *handle, int to_device) {
  struct object *stream = find(handle, STREAM);
  uintptr_t device = (uintptr_t)(to_device ? target : source);
  uintptr_t host = (uintptr_t)(to_device ? source : target);
  struct object *memory = holding(device, size);
  if (!stream) return INVALID_HANDLE;
  if (stream->capturing) { stream->broken = 1; return CAPTURE_UNSUPPORTED; }
  if (!memory || memory->kind != MEMORY || on_device(host, size)) return INVALID_VALUE;
  memcpy(target, source, size);
  busy(stream, 1.0 + size / 1e4); /* a copy takes 1 microsecond, and runs at 10 GB/s */
  return OK;
}

int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t size, void *stream) {
  ENTER;
  READY;
  LEAVE(copy((void *)(uintptr_t)target, source, size, stream, 1));
}

int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t size, void *stream) {
  ENTER;
  READY;
  LEAVE(copy(target, (void *)(uintptr_t)source, size, stream, 0));
}

int cuMemsetD8Async(uint64_t target, unsigned char value, size_t size, void *handle) {
  ENTER;
  READY;
  struct object *stream = find(handle, STREAM), *memory = holding(target, size);
  if (!stream) LEAVE(INVALID_HANDLE);
  if (!memory || memory->kind != MEMORY) LEAVE(INVALID_VALUE);
  memset((void *)(uintptr_t)target, value, size);
  busy(stream, 1.0);
  LEAVE(OK);
}

int cuStreamCreate(void **stream, unsigned value) {
  ENTER;
  READY;
  if (value > 1) LEAVE(INVALID_VALUE);
  *stream = make(STREAM);
  LEAVE(OK);
}

int cuStreamSynchronize(void *handle) {
  ENTER;
  READY;
  struct object *stream = find(handle, STREAM);
  if (!stream) LEAVE(INVALID_HANDLE);
  if (stream->capturing) { stream->broken = 1; LEAVE(CAPTURE_UNSUPPORTED); }
  while (now_us() < stream->until_us) { }
  if (next_fault) { sticky = next_fault; LEAVE(sticky); }
  LEAVE(OK);
}

int cuStreamDestroy_v2(void *handle) {
  ENTER;
  READY;
  LEAVE(drop(find(handle, STREAM)));
}

int cuStreamBeginCapture_v2(void *handle, int mode) {
  ENTER;
  READY;
  struct object *stream = find(handle, STREAM);
  if (!stream) LEAVE(INVALID_HANDLE);
  if (mode < 0 || mode > 2) LEAVE(INVALID_VALUE);
  if (stream->capturing) LEAVE(CAPTURE_INVALIDATED);
  stream->capturing = 1;
  stream->broken = 0;
  LEAVE(OK);
}

int cuStreamEndCapture(void *handle, void **graph) {
  ENTER;
  READY;
  struct object *stream = find(handle, STREAM);
  *graph = NULL;
  if (!stream) LEAVE(INVALID_HANDLE);
  if (!stream->capturing) LEAVE(INVALID_VALUE);
  stream->capturing = 0;
  struct work *works = stream->works;
  stream->works = NULL;
  if (stream->broken) { forget_works(works); LEAVE(CAPTURE_INVALIDATED); }
  struct object *made = make(GRAPH);
  made->works = works;
  *graph = made;
  LEAVE(OK);
}

int cuEventCreate(void **event, unsigned value) {
  ENTER;
  READY;
  if (value > 7) LEAVE(INVALID_VALUE);
  *event = make(EVENT);
  LEAVE(OK);
}

int cuEventRecord(void *handle, void *stream_handle) {
  ENTER;
  READY;
  struct object *event = find(handle, EVENT), *stream = find(stream_handle, STREAM);
  if (!event || !stream) LEAVE(INVALID_HANDLE);
  if (stream->capturing) { stream->broken = 1; LEAVE(CAPTURE_UNSUPPORTED); }
  busy(stream, 0.0);
  event->until_us = stream->until_us;
  event->recorded = 1;
  LEAVE(OK);
}

int cuEventElapsedTime(float *ms, void *first_handle, void *last_handle) {
  ENTER;
  READY;
  struct object *first = find(first_handle, EVENT), *last = find(last_handle, EVENT);
  if (!first || !last || !first->recorded || !last->recorded) LEAVE(INVALID_HANDLE);
  if (now_us() < last->until_us) LEAVE(NOT_READY);
  *ms = (float)((last->until_us - first->until_us) / 1e3);
  LEAVE(OK);
}

int cuEventDestroy_v2(void *handle) {
  ENTER;
  READY;
  LEAVE(drop(find(handle, EVENT)));
}

int cuGraphInstantiateWithFlags(void **exec, void *handle, unsigned long long value) {
  ENTER;
  READY;
  struct object *graph = find(handle, GRAPH);
  if (!graph) LEAVE(INVALID_HANDLE);
  if (value) LEAVE(INVALID_VALUE);
  struct object *made = make(EXEC);
  made->works = graph->works;
  graph->works = NULL;
  *exec = made;
  LEAVE(OK);
}

int cuGraphDestroy(void *handle) {
  ENTER;
  READY;
  LEAVE(drop(find(handle, GRAPH)));
}

/* Return error 700 (illegal address) if a kernel reads or writes memory that does not exist. */
static int touches(const struct work *w) {
  for (int i = 0; i < w->count; i++)
    if (!holding(w->pointers[i], w->sizes[i])) return 700;
  return OK;
}

int cuGraphLaunch(void *handle, void *stream_handle) {
  ENTER;
  READY;
  struct object *exec = find(handle, EXEC), *stream = find(stream_handle, STREAM);
  if (!exec || !stream) LEAVE(INVALID_HANDLE);
  for (struct work *w = exec->works; w; w = w->next) {
    if (touches(w)) next_fault = 700;
    busy(stream, w->us);
  }
  LEAVE(OK);
}

int cuGraphExecDestroy(void *handle) {
  ENTER;
  READY;
  LEAVE(drop(find(handle, EXEC)));
}

/* The doubles of other libraries and the tests call the functions below; the driver lacks them. */

int latfarm_double_launch(void *handle, double us, int count, const uintptr_t *pointers,
                          const size_t *sizes) {
  ENTER;
  READY;
  struct object *stream = find(handle, STREAM);
  if (!stream) LEAVE(INVALID_HANDLE);
  struct work *w = calloc(1, sizeof *w);
  w->us = us;
  w->count = count;
  w->pointers = malloc(count * sizeof *pointers + 1);
  w->sizes = malloc(count * sizeof *sizes + 1);
  memcpy(w->pointers, pointers, count * sizeof *pointers);
  memcpy(w->sizes, sizes, count * sizeof *sizes);
  if (stream->capturing) {
    struct work **at = &stream->works;
    while (*at) at = &(*at)->next;
    *at = w;
    LEAVE(OK);
  }
  if (touches(w)) next_fault = 700;
  busy(stream, us);
  forget_works(w);
  LEAVE(OK);
}

int latfarm_double_capturing(void *handle) {
  struct object *stream = find(handle, STREAM);
  return stream && stream->capturing;
}

int latfarm_double_ready(void) { return ready(); }

int latfarm_double_live(void) {
  int count = 0;
  for (struct object *o = objects; o; o = o->next) count++;
  return count;
}

unsigned latfarm_double_flags(void) { return flags; }

void latfarm_double_fault(int error) { next_fault = error; }
