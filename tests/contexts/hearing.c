/* A module that subscribes to keyspace events, like modules that index keys or keep copies of them:
 *
 *     hearing.begin      subscribes to the classes g and d
 *     hearing.heard      replies with the events and keys since the last call, in one line
 *
 * With the argument `begin` it subscribes when it is loaded. */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { OK = 0, ERR = 1, GENERIC = 1 << 2, MODULE = 1 << 13 };

typedef int get_api_fn(const char *name, void *function);
typedef int command_fn(void *ctx, void **argv, int argc);
typedef int event_fn(void *ctx, int class, const char *event, void *key);

static void (*set_attributes)(void *ctx, const char *name, int version, int api_version);
static int (*create_command)(void *ctx, const char *name, command_fn *command, const char *flags,
                             int first_key, int last_key, int key_step);
static int (*subscribe)(void *ctx, int classes, event_fn *on_event);
static const char *(*text_of)(const void *string, size_t *len);
static int (*reply_with_text)(void *ctx, const char *text);

static char heard[4096];

static int on_event(void *ctx, int class, const char *event, void *key) {
    (void)ctx, (void)class;
    size_t len = strlen(heard);
    snprintf(heard + len, sizeof heard - len, "%s%s %s", len ? ", " : "", event, text_of(key, NULL));
    return OK;
}

static int begin(void *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    return reply_with_text(ctx, subscribe(ctx, GENERIC | MODULE, on_event) == OK ? "OK" : "refused");
}

static int tell(void *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    int status = reply_with_text(ctx, heard);
    heard[0] = '\0';
    return status;
}

int RedisModule_OnUnload(void *ctx) {
    (void)ctx;
    return OK;
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    get_api_fn *get_api = *(get_api_fn **)ctx;
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) != OK ||
        get_api("RedisModule_CreateCommand", &create_command) != OK ||
        get_api("RedisModule_SubscribeToKeyspaceEvents", &subscribe) != OK ||
        get_api("RedisModule_StringPtrLen", &text_of) != OK ||
        get_api("RedisModule_ReplyWithSimpleString", &reply_with_text) != OK)
        return ERR;
    set_attributes(ctx, "hearing", 1, 1);
    if (argc > 0 && strcmp(text_of(argv[0], NULL), "begin") == 0 &&
        subscribe(ctx, GENERIC | MODULE, on_event) != OK)
        return ERR;
    if (create_command(ctx, "hearing.begin", begin, "readonly", 0, 0, 0) != OK) return ERR;
    return create_command(ctx, "hearing.heard", tell, "readonly", 0, 0, 0);
}
