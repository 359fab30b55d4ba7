/* A module that loads another module and hides functions of the module API from it. So the other
 * module finds the same functions as on a server that lacks them.
 *
 *     MODULE LOAD hiding.so /path/to/module.so RedisModule_LoadConfigs ...
 *
 * A module looks up each function by name, through a pointer in the first word of its entry point's
 * context. This module replaces that pointer during the call. Everything else that the other module
 * does with the context reaches the server. So the other module is loaded under its own name, and
 * this module has none. */

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { OK = 0, ERR = 1 };

typedef int get_api_fn(const char *name, void *function);
typedef const char *string_fn(const void *string, size_t *len);
typedef int on_load_fn(void *ctx, void **argv, int argc);

static get_api_fn *get_from_server;
static string_fn *text_of;
static void **hidden;
static int hidden_count;

static int get_api(const char *name, void *function) {
    for (int i = 0; i < hidden_count; i++) {
        if (strcmp(text_of(hidden[i], NULL), name) == 0) return ERR;
    }
    return get_from_server(name, function);
}

static int load(void *module, void *ctx) {
    on_load_fn *on_load = (on_load_fn *)dlsym(module, "RedisModule_OnLoad");
    if (on_load == NULL) return ERR;
    get_api_fn **first_word = ctx;
    *first_word = get_api;
    int status = on_load(ctx, NULL, 0);
    *first_word = get_from_server;
    return status;
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    get_from_server = *(get_api_fn **)ctx;
    if (argc < 1 || get_from_server("RedisModule_StringPtrLen", &text_of) != OK) return ERR;
    hidden = argv + 1;
    hidden_count = argc - 1;
    void *module = dlopen(text_of(argv[0], NULL), RTLD_NOW | RTLD_LOCAL);
    if (module == NULL) return ERR;
    int status = load(module, ctx);
    /* Like a server does with a module that refuses to load. */
    if (status != OK) dlclose(module);
    return status;
}
