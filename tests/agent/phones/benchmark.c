/* This program takes the place of the vendors' benchmark binaries on a phone. It has their command
 * lines and their output, and does real work on the bytes of the model's file. The name under which
 * it runs decides which binary it imitates. A word in the file /data/local/tmp/behave makes it
 * misbehave as such binaries sometimes do: it can crash, hang or print garbage, for example.
 */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 64

static uint8_t *data;
static size_t size;
static volatile uint32_t sink;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static uint32_t u32(size_t at) {
    uint32_t value = 0;
    if (at + 4 <= size) memcpy(&value, data + at, 4);
    return value;
}

static size_t field(size_t table, int index) {
    size_t vtable = table - (int32_t)u32(table);
    uint16_t length = u32(vtable) & 0xffff, offset = 0;
    if (4 + 2 * index + 2 <= length) offset = u32(vtable + 4 + 2 * index) & 0xffff;
    return offset ? table + offset : 0;
}

static size_t follow(size_t at) { return at ? at + u32(at) : 0; }
static size_t item(size_t vector, int index) { return follow(vector + 4 + 4 * index); }

static int load(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return 0;
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    data = malloc(size + 8);
    size_t got = fread(data, 1, size, file);
    fclose(file);
    return got == size;
}

static double work(void) {
    double begun = now_us();
    uint32_t sum = 1;
    for (int turn = 0; turn < 20; turn++)
        for (size_t i = 0; i < size && i < 8192; i++) sum = sum * 31 + data[i];
    sink = sum;
    return now_us() - begun;
}

static void behave(const char *self, char *word, size_t room) {
    char path[4096];
    const char *root = strstr(self, "/data/local/tmp/");
    word[0] = 0;
    if (!root) return;
    snprintf(path, sizeof path, "%.*s/data/local/tmp/behave", (int)(root - self), self);
    FILE *file = fopen(path, "r");
    if (!file) return;
    if (!fgets(word, room, file)) word[0] = 0;
    word[strcspn(word, "\n")] = 0;
    fclose(file);
    if (!strcmp(word, "segfault")) raise(SIGSEGV);
    if (!strcmp(word, "killed")) raise(SIGKILL);
    if (!strcmp(word, "garbage")) { printf("count=\xff\x01 1e999 Inference (avg)\n"); exit(0); }
    if (!strcmp(word, "silent")) exit(0);
    if (!strcmp(word, "flood")) for (;;) puts("INFO: and another line of nothing at all");
    if (!strcmp(word, "hang")) for (;;) pause();
    if (!strcmp(word, "fail")) { printf("ERROR: something of its own\n"); exit(1); }
}

/* --- TFLite's benchmark_model --- */

static const char *flag(int argc, char **argv, const char *name, const char *fallback) {
    size_t length = strlen(name);
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--", 2) && !strncmp(argv[i] + 2, name, length) &&
            argv[i][2 + length] == '=')
            return argv[i] + 3 + length;
    return fallback;
}

static int by_time(const void *a, const void *b) {
    double x = *(double *)a, y = *(double *)b;
    return (x > y) - (x < y);
}

static double stats(int count, double least_s, double most_s, int median, double *first) {
    double runs[4096], sum = 0, begun = now_us();
    int made = 0;
    printf("INFO: Running benchmark for at least %d iterations and at least %g seconds but "
           "terminate if exceeding %g seconds.\n", count, least_s, most_s);
    while ((made < count || now_us() - begun < least_s * 1e6) && now_us() - begun <= most_s * 1e6 &&
           made < 4096) {
        runs[made] = (double)(int64_t)(work() + 1);
        sum += runs[made++];
    }
    *first = runs[0];
    double last = runs[made - 1], average = sum / made;
    qsort(runs, made, sizeof *runs, by_time);
    if (runs[0] == runs[made - 1]) {
        printf("INFO: count=%d curr=%.0f%s", made, last, made > 1 ? "(all same)" : "");
    } else {
        printf("INFO: count=%d first=%.0f curr=%.0f min=%.0f max=%.0f avg=%g std=%d", made, *first,
               last, runs[0], runs[made - 1], average, 3);
    }
    if (median)
        printf(" p5=%.0f median=%.0f p95=%.0f", runs[made * 5 / 100], runs[made / 2],
               runs[made * 95 / 100]);
    printf("\n\n");
    return average;
}

static const char *op_name(int code) {
    static const char *names[] = {"ADD", "AVERAGE_POOL_2D", "CONCATENATION", "CONV_2D",
                                  "DEPTHWISE_CONV_2D"};
    return code < 5 ? names[code] : code == 9 ? "FULLY_CONNECTED" : code == 17 ? "MAX_POOL_2D"
         : code == 22 ? "RESHAPE" : code == 25 ? "SOFTMAX" : "OTHER";
}

static void row(const char *kind, double us, const char *names, int node) {
    printf("\t%24s\t%9.3f\t%9.3f\t%7.3f%%\t%7.3f%%\t%10.3f\t%9d\t[%s]:%d\n", kind, us / 1e3,
           us / 1e3, 10.0, 10.0, 0.0, 1, names, node);
}

static int benchmark_model(int argc, char **argv, const char *word) {
    const char *graph = flag(argc, argv, "graph", "");
    int gpu = !strcmp(flag(argc, argv, "use_gpu", ""), "true");
    int nnapi = !strcmp(flag(argc, argv, "use_nnapi", ""), "true");
    int xnnpack = !strcmp(flag(argc, argv, "use_xnnpack", ""), "true");
    int median = strcmp(word, "old") != 0;
    printf("INFO: STARTING!\nINFO: Graph: [%s]\n", graph);
    double begun = now_us();
    if (!load(graph)) {
        printf("ERROR: Could not open '%s'.\nERROR: Failed to load model %s\n", graph, graph);
        return 1;
    }
    if (size < 8 || memcmp(data + 4, "TFL3", 4)) {
        printf("ERROR: Model provided has model identifier 'xxxx', should be 'TFL3'\n");
        return 1;
    }
    size_t model = u32(0), codes = follow(field(model, 1));
    size_t main_graph = item(follow(field(model, 2)), 0);
    size_t tensors = follow(field(main_graph, 0)), operators = follow(field(main_graph, 3));
    int count = u32(operators);
    for (int i = 0; i < (int)u32(tensors); i++) {
        size_t shape = follow(field(item(tensors, i), 0));
        double bytes = 4;
        for (int d = 0; shape && d < (int)u32(shape); d++) bytes *= u32(shape + 4 + 4 * d);
        if (bytes > 2e9) {
            printf("terminate called after throwing an instance of 'std::bad_alloc'\n");
            fflush(stdout);
            abort();
        }
    }
    int kinds[MOST];
    char outputs[MOST][256];
    for (int i = 0; i < count && i < MOST; i++) {
        size_t op = item(operators, i), at = field(op, 0);
        size_t code = item(codes, at ? u32(at) : 0), builtin = field(code, 3);
        kinds[i] = builtin ? (int)u32(builtin) : 0;
        if (kinds[i] == 32) {
            printf("ERROR: Encountered unresolved custom op: NoSuchOp.\n");
            return 1;
        }
        size_t made = follow(field(op, 2));
        outputs[i][0] = 0;
        if (made && u32(made)) {
            size_t name = follow(field(item(tensors, u32(made + 4)), 3));
            snprintf(outputs[i], sizeof outputs[i], "%.*s", name ? (int)u32(name) : 0,
                     name ? (char *)data + name + 4 : "");
        }
    }
    printf("INFO: Loaded model %s\n", graph);
    const char *delegate = gpu ? "GPU" : nnapi ? "NNAPI" : "XNNPACK";
    if ((gpu || nnapi || xnnpack) && !strcmp(word, "refuse")) {
        printf("INFO: Though %s delegate is explicitly applied, the model graph will not be executed"
               " by the delegate.\n", delegate);
    } else if (gpu || nnapi) {
        printf("INFO: Explicitly applied %s delegate, and the model graph will be completely"
               " executed by the delegate.\n", delegate);
    } else if (xnnpack && count > 1) {
        printf("INFO: Explicitly applied XNNPACK delegate, and the model graph will be partially"
               " executed by the delegate w/ 1 delegate kernels.\n");
    }
    printf("INFO: Initialized session in %gms.\n", (now_us() - begun) / 1e3);
    double init_us = now_us() - begun, first, other, most = atof(flag(argc, argv, "max_secs", "150"));
    double warmup = stats(atoi(flag(argc, argv, "warmup_runs", "1")),
                          atof(flag(argc, argv, "warmup_min_secs", "0.5")), most, median, &first);
    double average = stats(atoi(flag(argc, argv, "num_runs", "50")),
                           atof(flag(argc, argv, "min_secs", "1")), most, median, &other);
    if (!strcmp(word, "lie")) average *= 3;
    printf("INFO: Inference timings in us: Init: %.0f, First inference: %.0f, Warmup (avg): %g, "
           "Inference (avg): %g\n", init_us, first, warmup, average);
    if (!strcmp(flag(argc, argv, "report_peak_memory_footprint", ""), "true"))
        printf("INFO: Overall peak memory footprint (MB) via periodic monitoring: 12.5\n");
    if (strcmp(flag(argc, argv, "enable_op_profiling", ""), "true")) return 0;
    printf("INFO: Profiling Info for Benchmark Initialization:\n"
           "============================== Run Order ==============================\n"
           "\t[node type]\t[first]\t[avg ms]\t[%%]\t[cdf%%]\t[mem KB]\t[times called]\t[Name]\n"
           "\tAllocateTensors\t0.1\t0.1\t100%%\t100%%\t0\t1\tAllocateTensors/0\n\n"
           "INFO: Operator-wise Profiling Info for Regular Benchmark Runs:\n"
           "============================== Run Order ==============================\n"
           "\t             [node type]\t  [first]\t [avg ms]\t     [%%]\t  [cdf%%]\t  [mem KB]\t"
           "[times called]\t[Name]\n");
    int alone = gpu || nnapi ? count : xnnpack && count > 1 ? count - 1 : 0;
    if (alone) {
        char kind[64];
        snprintf(kind, sizeof kind, "TfLite%sDelegate", gpu ? "GpuDelegateV2" : nnapi ? "Nnapi"
                 : "XNNPack");
        row(kind, work(), outputs[alone - 1], count);
        printf("\t%24s\t%9.3f\t%9.3f\t%7.3f%%\t%7.3f%%\t%10.3f\t%9d\tDelegate/Part (NHWC, F32):0\n",
               "DelegateOpInvoke", 0.001, 0.001, 1.0, 1.0, 0.0, 1);
    }
    for (int i = alone; i < count && i < MOST; i++) row(op_name(kinds[i]), work(), outputs[i], i);
    printf("\n============================== Top by Computation Time "
           "==============================\n\n");
    return 0;
}

/* --- The benchmark binaries of MNN and ncnn --- */

static void loop(int warmup, int runs, double *least, double *most, double *average) {
    double sum = 0;
    *least = 1e30, *most = 0;
    for (int i = 0; i < warmup; i++) work();
    for (int i = 0; i < runs; i++) {
        double ms = work() / 1e3 + 0.02;
        sum += ms;
        if (ms < *least) *least = ms;
        if (ms > *most) *most = ms;
    }
    *average = sum / runs;
}

static int mnn(int argc, char **argv, int basic) {
    char path[4096];
    double least, most, average;
    if (argc < (basic ? 6 : 7)) return 1;
    snprintf(path, sizeof path, basic ? "%s" : "%s/model.mnn", argv[1]);
    if (!load(path)) raise(SIGSEGV);
    loop(basic ? 0 : atoi(argv[3]), atoi(argv[2]), &least, &most, &average);
    if (basic) {
        printf("Open Model %s\n", path);
        printf("%50s \t[%s] run %s average cost %f ms, %.3f %%, FlopsRate: %.3f %%\n", "y", "UnaryOp",
               argv[2], average / 4, 25.0, 1.0);
        printf("%50s \t[%s] run %s average cost %f ms, %.3f %%, FlopsRate: %.3f %%\n", "c 0",
               "Convolution", argv[2], average * 3 / 4, 75.0, 99.0);
        printf("Avg= %f ms, min= %f ms, max= %f ms\n", average, least, most);
    } else {
        printf("MNN benchmark\n[ - ] %-24s    max = %8.3f ms  min = %8.3f ms  avg = %8.3f ms\n",
               "model.mnn", most, least, average);
    }
    return 0;
}

static int ncnn(int argc, char **argv, const char *word) {
    double least, most, average;
    if (argc != 8 || strncmp(argv[6], "param=", 6) || strncmp(argv[7], "shape=[", 7)) return 255;
    if (!load(argv[6] + 6)) fprintf(stderr, "fopen failed: load_param\n");
    if (!strcmp(word, "lacking")) fprintf(stderr, "layer Strange not exists or registered\n");
    fprintf(stderr, "loop_count = %s\nnum_threads = %s\n", argv[1], argv[2]);
    loop(8, atoi(argv[1]), &least, &most, &average);
    if (!strcmp(word, "nothing")) least = most = average = 0;
    fprintf(stderr, "%20s  min = %7.2f  max = %7.2f  avg = %7.2f\n", argv[6] + 6, least, most,
            average);
    return 0;
}

int main(int argc, char **argv) {
    char word[64];
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    setvbuf(stdout, NULL, _IOLBF, 0);
    behave(argv[0], word, sizeof word);
    if (!strcmp(name, "benchmark.out")) return mnn(argc, argv, 0);
    if (!strcmp(name, "MNNV2Basic.out")) return mnn(argc, argv, 1);
    if (!strcmp(name, "benchncnn")) return ncnn(argc, argv, word);
    return benchmark_model(argc, argv, word);
}
