/* A delegate for NEG, and for the custom operator "negate", on float32: y = (-1)^n x + bias for a chain of n.
   The structures are those of TensorFlow Lite's C interface (common.h), as far as they are used. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int size; int data[]; } Ints;
struct Context; struct Node; struct Delegate; struct Registration;

typedef struct {
  int32_t type; float* data; Ints* dims; float scale; int32_t zero_point; int32_t allocation; size_t bytes;
  const void* map; const char* name; struct Delegate* delegate; int32_t handle; bool stale, variable;
  int32_t quantization; void* parameters; void* sparsity; const Ints* signature;
} Tensor;

typedef struct Node { Ints *inputs, *outputs, *intermediates, *temporaries; void* user_data; } Node;

typedef struct Registration {
  void* (*init)(struct Context*, const char*, size_t);
  void (*free)(struct Context*, void*);
  int (*prepare)(struct Context*, Node*);
  int (*invoke)(struct Context*, Node*);
  const char* (*profile)(const struct Context*, const Node*);
  int32_t builtin_code; const char* custom_name; int version; void* rest[16];
} Registration;

typedef struct Context {
  size_t tensors_size;
  int (*plan)(struct Context*, Ints**);
  Tensor* tensors;
  void* impl;
  int (*resize)(struct Context*, Tensor*, Ints*);
  void (*report)(struct Context*, const char*, ...);
  int (*add)(struct Context*, int, int*);
  int (*node)(struct Context*, int, Node**, Registration**);
  int (*replace)(struct Context*, Registration, const Ints*, struct Delegate*);
} Context;

typedef struct Delegate {
  void* data;
  int (*prepare)(Context*, struct Delegate*);
  int (*copy_from)(Context*, struct Delegate*, int, Tensor*);
  int (*copy_to)(Context*, struct Delegate*, int, Tensor*);
  void (*free_handle)(Context*, struct Delegate*, int*);
  int64_t flags;
  void* builder; void* rest[8];
  float bias; const char* fail;
} Delegate;

typedef struct { Delegate* delegate; Ints *nodes, *inputs, *outputs; } Params;
typedef struct { Delegate* delegate; float sign; } Kernel;

int alive = 0, kernels = 0, invokes = 0, created = 0, destroyed = 0, prepared = 0;
static void (*on_destroy)(const char*) = NULL;

int count_created(void) { return created; }
int count_destroyed(void) { return destroyed; }
int count_prepared(void) { return prepared; }
void forget_counts(void) { created = destroyed = prepared = 0; }
void set_on_destroy(void (*callback)(const char*)) { on_destroy = callback; }

static void* init(Context* context, const char* buffer, size_t length) {
  const Params* params = (const Params*)buffer;
  Kernel* kernel = calloc(1, sizeof *kernel);
  kernel->delegate = params->delegate;
  kernel->sign = params->nodes->size % 2 ? -1.f : 1.f;
  ++kernels;
  return kernel;
}
static void release(Context* context, void* kernel) { free(kernel); --kernels; }
static int prepare(Context* context, Node* node) {
  Kernel* kernel = node->user_data;
  return kernel->delegate->fail && !strcmp(kernel->delegate->fail, "kernel");
}
static int invoke(Context* context, Node* node) {
  Kernel* kernel = node->user_data;
  if (kernel->delegate->fail && !strcmp(kernel->delegate->fail, "invoke")) {
    context->report(context, "the bus is on fire");
    return 1;
  }
  Tensor *x = &context->tensors[node->inputs->data[0]], *y = &context->tensors[node->outputs->data[0]];
  for (size_t i = 0; i < x->bytes / sizeof(float); ++i) y->data[i] = kernel->sign * x->data[i] + kernel->delegate->bias;
  ++invokes;
  return 0;
}
static int prepare_graph(Context* context, Delegate* delegate) {
  Ints* plan;
  ++prepared;
  if (delegate->fail && !strcmp(delegate->fail, "prepare")) {
    context->report(context, "the bus is busy");
    return 1;
  }
  if (context->plan(context, &plan)) return 1;
  Ints* chosen = malloc(sizeof(Ints) + plan->size * sizeof(int));
  chosen->size = 0;
  for (int i = 0; i < plan->size; ++i) {
    Node* node; Registration* registration;
    if (context->node(context, plan->data[i], &node, &registration)) return 1;
    bool custom = registration->builtin_code == 32 && !strcmp(registration->custom_name, "negate");
    if (custom || registration->builtin_code == 59) chosen->data[chosen->size++] = plan->data[i];
  }
  Registration mine = {0};
  mine.init = init; mine.free = release; mine.prepare = prepare; mine.invoke = invoke;
  mine.custom_name = "Negation"; mine.version = 1;
  int status = chosen->size ? context->replace(context, mine, chosen, delegate) : 0;
  free(chosen);
  return status;
}
void* tflite_plugin_create_delegate(char** keys, char** values, size_t count, void (*report)(const char*)) {
  Delegate* delegate = calloc(1, sizeof *delegate);
  delegate->prepare = prepare_graph;
  for (size_t i = 0; i < count; ++i) {
    if (!strcmp(keys[i], "bias")) delegate->bias = atof(values[i]);
    else if (!strcmp(keys[i], "flags")) delegate->flags = atoi(values[i]);
    else if (!strcmp(keys[i], "fail")) delegate->fail = strdup(values[i]);
    else { report("there is no option "); report(keys[i]); free(delegate); return NULL; }
  }
  ++alive;
  ++created;
  return delegate;
}
void tflite_plugin_destroy_delegate(void* delegate) {
  free(delegate);
  --alive;
  ++destroyed;
  if (on_destroy) on_destroy("delegate");
}
