/* A double of NVML: one GPU whose figures the environment sets.
 *
 * LATFARM_NVML_DEVICES: how many there are (1). LATFARM_NVML_REASONS: the mask of clock reasons.
 * LATFARM_NVML_OLD: a driver before 535, without the newer name of that call. LATFARM_NVML_PART: as
 * on Jetsons, where most questions are answered with NVML_ERROR_NOT_SUPPORTED.
 * Error numbers are those of the "NVML API Reference Guide".
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7 };

static int initialised;
static int marks[8];

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? (int)strtol(text, NULL, 0) : otherwise;
}

static int device(const void *handle) {
  if (!initialised) return UNINITIALIZED;
  for (int i = 0; i < number("LATFARM_NVML_DEVICES", 1); i++)
    if (handle == &marks[i]) return OK;
  return INVALID_ARGUMENT;
}

static int whole(const void *handle) {
  int code = device(handle);
  return code ? code : number("LATFARM_NVML_PART", 0) ? NOT_SUPPORTED : OK;
}

int nvmlInit_v2(void) {
  if (getenv("LATFARM_NVML_BROKEN")) return 9; /* driver not loaded */
  initialised++;
  return OK;
}

int nvmlShutdown(void) {
  if (!initialised) return UNINITIALIZED;
  initialised--;
  return OK;
}

static int text(char *target, unsigned size, const char *value) {
  if (size <= strlen(value)) return INSUFFICIENT_SIZE;
  strcpy(target, value);
  return OK;
}

int nvmlSystemGetDriverVersion(char *target, unsigned size) {
  return initialised ? text(target, size, "560.35.03") : UNINITIALIZED;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  if (!initialised) return UNINITIALIZED;
  *count = (unsigned)number("LATFARM_NVML_DEVICES", 1);
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
  if (!initialised) return UNINITIALIZED;
  if ((int)index >= number("LATFARM_NVML_DEVICES", 1)) return INVALID_ARGUMENT;
  *handle = &marks[index];
  return OK;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
  if (!initialised) return UNINITIALIZED;
  if (strcmp(bus, "0000:65:00.0")) return NOT_FOUND;
  *handle = &marks[number("LATFARM_NVML_DEVICES", 1) - 1];
  return OK;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
  int code = device(handle);
  if (!code) *index = (unsigned)((int *)handle - marks);
  return code;
}

int nvmlDeviceGetName(void *handle, char *target, unsigned size) {
  int code = device(handle);
  return code ? code : text(target, size, "Double GPU");
}

int nvmlDeviceGetClockInfo(void *handle, int kind, unsigned *mhz) {
  int code = whole(handle);
  if (code) return code;
  if (kind != 1 && kind != 2) return INVALID_ARGUMENT;
  *mhz = kind == 1 ? (unsigned)number("LATFARM_NVML_CLOCK", 1410) : 2619;
  return OK;
}

int nvmlDeviceGetMaxClockInfo(void *handle, int kind, unsigned *mhz) {
  int code = whole(handle);
  if (code) return code;
  if (kind != 1) return INVALID_ARGUMENT;
  *mhz = 1980;
  return OK;
}

int nvmlDeviceGetApplicationsClock(void *handle, int kind, unsigned *mhz) {
  int code = whole(handle);
  if (code) return code;
  if (kind != 0) return INVALID_ARGUMENT;
  *mhz = 1410;
  return OK;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
  int code = device(handle);
  if (code) return code;
  if (sensor) return INVALID_ARGUMENT;
  *celsius = 47;
  return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *mask) {
  int code = whole(handle);
  if (code) return code;
  if (number("LATFARM_NVML_OLD", 0)) return 13; /* function not found */
  *mask = (unsigned long long)number("LATFARM_NVML_REASONS", 1);
  return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *mask) {
  int code = whole(handle);
  if (!code) *mask = (unsigned long long)number("LATFARM_NVML_REASONS", 1);
  return code;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *mw) {
  int code = whole(handle);
  if (!code) *mw = 71500;
  return code;
}

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *mw) {
  int code = whole(handle);
  if (!code) *mw = 700000;
  return code;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *mj) {
  int code = whole(handle);
  if (!code) *mj = 5000000001ULL; /* more than 32 bits */
  return code;
}

int nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) {
  int code = whole(handle);
  if (!code) *mode = 1;
  return code;
}
