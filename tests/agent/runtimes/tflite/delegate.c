/* This is an external TFLite delegate for tests. It takes element-wise operators and computes them.
 *
 * The structs are those of TFLite's public C interface (tflite/core/c/common.h), as far as they are
 * used here. The delegate has these options:
 *   take             the operators to take, separated by commas: relu, relu6, add, tanh, ethos-u
 *   compile_ms       how long the first inference of a partition compiles, in milliseconds
 *   cache_file_path  a file for the compiled graph: the delegate writes it after compiling, and if
 *                    it exists, reads it instead of compiling
 *   corrupt          what happens if this file is broken: "crash", otherwise an error ("fail")
 *   trace            a file to which the delegate appends "compiled" or "loaded"
 *   refuse           the delegate cannot be created, and this text is the reason that it reports
 *   crash            where the delegate crashes: "create", "prepare" or "invoke"
 *   allowed_cache_mode  this option is accepted and ignored
 * The operator "ethos-u" is a compiled command stream: the delegate sets its outputs to zero.
 */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
  int size;
  int data[];
} IntArray;

typedef struct {
  int type;
  union {
    void *raw;
    float *f;
    int8_t *i8;
  } data;
  IntArray *dims;
  struct {
    float scale;
    int32_t zero_point;
  } params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  bool data_is_stale;
  bool is_variable;
  struct {
    int type;
    void *params;
  } quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;

typedef struct {
  IntArray *inputs;
  IntArray *outputs;
  IntArray *intermediates;
  IntArray *temporaries;
  void *user_data;
  void *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
  void *delegate;
  bool might_have_side_effect;
} Node;

struct Context;
struct Delegate;

typedef struct {
  void *(*init)(struct Context *, const char *, size_t);
  void (*free)(struct Context *, void *);
  int (*prepare)(struct Context *, Node *);
  int (*invoke)(struct Context *, Node *);
  const char *(*profiling_string)(const struct Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *async_kernel;
  uint64_t inplace_operator;
} Registration;

typedef struct Context {
  size_t tensors_size;
  int (*GetExecutionPlan)(struct Context *, IntArray **);
  Tensor *tensors;
  void *impl;
  int (*ResizeTensor)(struct Context *, Tensor *, IntArray *);
  void (*ReportError)(struct Context *, const char *, ...);
  int (*AddTensors)(struct Context *, int, int *);
  int (*GetNodeAndRegistration)(struct Context *, int, Node **, Registration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(struct Context *, Registration, const IntArray *,
                                               struct Delegate *);
} Context;

typedef struct Delegate {
  void *data;
  int (*Prepare)(Context *, struct Delegate *);
  int (*CopyFromBufferHandle)(Context *, struct Delegate *, int, Tensor *);
  int (*CopyToBufferHandle)(Context *, struct Delegate *, int, Tensor *);
  void (*FreeBufferHandle)(Context *, struct Delegate *, int *);
  int64_t flags;
  void *opaque_builder;
} Delegate;

typedef struct {
  Delegate *delegate;
  IntArray *nodes_to_replace;
  IntArray *input_tensors;
  IntArray *output_tensors;
} DelegateParams;

enum { OK = 0, ERROR = 1, FLOAT32 = 1, INT8 = 9, DELEGATE_CODE = 51, CUSTOM_CODE = 32 };
enum { SCRATCH = 2, SCRATCH_FAST = 3, CUSTOM_MEMORY = 6 };
enum { ADD = 0, RELU = 19, RELU6 = 21, TANH = 28 };
static const char MAGIC[] = "compiled graph of the test delegate\n";

typedef struct {
  Delegate base;
  char take[128], cache[512], corrupt[16], trace[512], crash[16];
  int compile_ms;
} Mine;

typedef struct {
  int code, input, other, output;
  const IntArray *inputs;
  bool inner;
} Op;

typedef struct {
  Mine *mine;
  bool ready;
  int count;
  Op ops[];
} Kernel;

static void crash(void) { raise(SIGSEGV); }

static void crash_at(const Mine *mine, const char *where) {
  if (strcmp(mine->crash, where) == 0) crash();
}

static void trace(const Mine *mine, const char *word) {
  FILE *file = mine->trace[0] ? fopen(mine->trace, "a") : NULL;
  if (file) {
    fprintf(file, "%s\n", word);
    fclose(file);
  }
}

static bool wanted(const Mine *mine, const Context *context, const Node *node,
                   const Registration *registration) {
  const char *name = NULL;
  if (registration->builtin_code == ADD) name = "add";
  if (registration->builtin_code == RELU) name = "relu";
  if (registration->builtin_code == RELU6) name = "relu6";
  if (registration->builtin_code == TANH) name = "tanh";
  if (registration->builtin_code == CUSTOM_CODE) name = registration->custom_name;
  if (!name) return false;
  if (registration->builtin_code == ADD) {
    const Tensor *all = context->tensors; /* the delegate does not take broadcasts */
    if (all[node->inputs->data[0]].bytes != all[node->outputs->data[0]].bytes) return false;
    if (all[node->inputs->data[1]].bytes != all[node->outputs->data[0]].bytes) return false;
  }
  char list[sizeof mine->take];
  strcpy(list, mine->take);
  for (char *word = strtok(list, ","); word; word = strtok(NULL, ","))
    if (strcmp(word, name) == 0) return true;
  return false;
}

static float get(const Tensor *tensor, size_t index) {
  if (tensor->type == FLOAT32) return tensor->data.f[index];
  return tensor->params.scale * (float)(tensor->data.i8[index] - tensor->params.zero_point);
}

static void put(Tensor *tensor, size_t index, float value) {
  if (tensor->type == FLOAT32) {
    tensor->data.f[index] = value;
    return;
  }
  float level = roundf(value / tensor->params.scale) + (float)tensor->params.zero_point;
  tensor->data.i8[index] = (int8_t)(level < -128 ? -128 : level > 127 ? 127 : level);
}

static float compute(int code, float a, float b) {
  switch (code) {
    case ADD: return a + b;
    case RELU: return a > 0 ? a : 0;
    case RELU6: return a > 0 ? (a < 6 ? a : 6) : 0;
    default: return tanhf(a);
  }
}

static int compile(Kernel *kernel, Context *context) {
  Mine *mine = kernel->mine;
  FILE *file = mine->cache[0] ? fopen(mine->cache, "rb") : NULL;
  if (file) {
    char text[sizeof MAGIC] = "";
    size_t got = fread(text, 1, sizeof MAGIC - 1, file);
    fclose(file);
    if (got != sizeof MAGIC - 1 || strcmp(text, MAGIC) != 0) {
      if (strcmp(mine->corrupt, "crash") == 0) crash();
      context->ReportError(context, "the compiled graph is broken");
      return ERROR;
    }
    trace(mine, "loaded");
    return OK;
  }
  struct timespec spent = {mine->compile_ms / 1000, mine->compile_ms % 1000 * 1000000L};
  nanosleep(&spent, NULL);
  trace(mine, "compiled");
  file = mine->cache[0] ? fopen(mine->cache, "wb") : NULL;
  if (file) {
    fputs(MAGIC, file);
    fclose(file);
  }
  return OK;
}

static void *init(Context *context, const char *buffer, size_t length) {
  (void)length;
  const DelegateParams *params = (const DelegateParams *)buffer;
  int count = params->nodes_to_replace->size;
  Kernel *kernel = calloc(1, sizeof *kernel + sizeof(Op) * (size_t)count);
  kernel->mine = (Mine *)params->delegate;
  kernel->count = count;
  for (int i = 0; i < count; i++) {
    Node *node;
    Registration *registration;
    context->GetNodeAndRegistration(context, params->nodes_to_replace->data[i], &node,
                                    &registration);
    Op *op = &kernel->ops[i];
    op->code = registration->builtin_code;
    op->inputs = node->inputs;
    op->input = node->inputs->data[0];
    op->other = node->inputs->size > 1 ? node->inputs->data[1] : op->input;
    op->output = node->outputs->data[0];
  }
  return kernel;
}

static void release(Context *context, void *buffer) {
  (void)context;
  free(buffer);
}

/* TFLite gives no memory to tensors inside a partition: they get it here for one inference. */
static int invoke(Context *context, Node *node) {
  Kernel *kernel = node->user_data;
  crash_at(kernel->mine, "invoke");
  if (!kernel->ready) {
    int status = compile(kernel, context);
    if (status != OK) return status;
    kernel->ready = true;
  }
  for (int i = 0; i < kernel->count; i++) {
    Op *op = &kernel->ops[i];
    Tensor *a = &context->tensors[op->input], *b = &context->tensors[op->other];
    Tensor *y = &context->tensors[op->output];
    if (op->code == CUSTOM_CODE) {
      for (int k = 0; k < node->outputs->size; k++) {
        Tensor *out = &context->tensors[node->outputs->data[k]];
        memset(out->data.raw, 0, out->bytes);
      }
      continue;
    }
    size_t count = y->type == FLOAT32 ? y->bytes / 4 : y->bytes;
    op->inner = y->data.raw == NULL;
    if (op->inner) y->data.raw = malloc(y->bytes);
    for (size_t k = 0; k < count; k++) put(y, k, compute(op->code, get(a, k), get(b, k)));
  }
  for (int i = 0; i < kernel->count; i++) {
    Tensor *y = &context->tensors[kernel->ops[i].output];
    if (kernel->ops[i].inner) {
      free(y->data.raw);
      y->data.raw = NULL;
    }
    kernel->ops[i].inner = false;
  }
  return OK;
}

static int kernel_prepare(Context *context, Node *node) {
  Kernel *kernel = node->user_data;
  crash_at(kernel->mine, "prepare");
  for (int i = 0; i < kernel->count; i++) {
    /* The inputs of Vela's operator are its command stream, its weights, and two working memories
     * (scratch), which the delegate has to allocate. */
    for (int k = SCRATCH; kernel->ops[i].code == CUSTOM_CODE && k <= SCRATCH_FAST; k++) {
      Tensor *tensor = &context->tensors[kernel->ops[i].inputs->data[k]];
      if (tensor->allocation_type == CUSTOM_MEMORY) continue;
      tensor->allocation_type = CUSTOM_MEMORY;
      tensor->data.raw = calloc(1, tensor->bytes);
    }
  }
  return OK;
}

static int prepare(Context *context, Delegate *delegate) {
  IntArray *plan;
  if (context->GetExecutionPlan(context, &plan) != OK) return ERROR;
  IntArray *chosen = calloc(1, sizeof *chosen + sizeof(int) * (size_t)plan->size);
  for (int i = 0; i < plan->size; i++) {
    Node *node;
    Registration *registration;
    if (context->GetNodeAndRegistration(context, plan->data[i], &node, &registration) != OK)
      return ERROR;
    if (wanted((Mine *)delegate, context, node, registration)) chosen->data[chosen->size++] = plan->data[i];
  }
  Registration registration = {.init = init,
                               .free = release,
                               .prepare = kernel_prepare,
                               .invoke = invoke,
                               .builtin_code = DELEGATE_CODE,
                               .custom_name = "TestDelegate",
                               .version = 1};
  int status =
      context->ReplaceNodeSubsetsWithDelegateKernels(context, registration, chosen, delegate);
  free(chosen);
  return status;
}

static void set(char *to, size_t room, const char *value) { snprintf(to, room, "%s", value); }

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count,
                                        void (*report_error)(const char *)) {
  Mine *mine = calloc(1, sizeof *mine);
  mine->base.Prepare = prepare;
  mine->base.flags = 1; /* kTfLiteDelegateFlagsAllowDynamicTensors */
  set(mine->take, sizeof mine->take, "relu");
  for (size_t i = 0; i < count; i++) {
    if (strcmp(keys[i], "take") == 0) set(mine->take, sizeof mine->take, values[i]);
    else if (strcmp(keys[i], "compile_ms") == 0) mine->compile_ms = atoi(values[i]);
    else if (strcmp(keys[i], "cache_file_path") == 0) set(mine->cache, sizeof mine->cache, values[i]);
    else if (strcmp(keys[i], "corrupt") == 0) set(mine->corrupt, sizeof mine->corrupt, values[i]);
    else if (strcmp(keys[i], "trace") == 0) set(mine->trace, sizeof mine->trace, values[i]);
    else if (strcmp(keys[i], "crash") == 0) set(mine->crash, sizeof mine->crash, values[i]);
    else if (strcmp(keys[i], "allowed_cache_mode") == 0) continue;
    else {
      if (report_error)
        report_error(strcmp(keys[i], "refuse") == 0 ? values[i] : "an option that is unknown");
      free(mine);
      return NULL;
    }
  }
  crash_at(mine, "create");
  return &mine->base;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) { free(delegate); }
