/* A module whose commands call the command that they are given, by RM_Call:
 *
 *     calling.call LOCK.INFO key              as the server itself: without a user
 *     calling.call_as_user LOCK.INFO key      as the user of its own caller
 *     calling.call_as_own LOCK.INFO key       as a user that this module creates, with every right
 *     calling.call_on_thread LOCK.CHECK k t   on a thread of its own, which takes the server's lock
 *     calling.answer_pong LOCK.NONE           makes its command filter turn this command into PING
 *     calling.take_keys guest                 takes all key patterns from this user, without a command
 */

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <strings.h>

enum { OK = 0, ERR = 1 };

typedef int get_api_fn(const char *name, void *function);
typedef int command_fn(void *ctx, void **argv, int argc);

static void (*set_attributes)(void *ctx, const char *name, int version, int api_version);
static int (*create_command)(void *ctx, const char *name, command_fn *command, const char *flags,
                             int first_key, int last_key, int key_step);
static void *(*call)(void *ctx, const char *command, const char *format, ...);
static int (*reply_with)(void *ctx, void *reply);
static int (*wrong_arity)(void *ctx);
static const char *(*text_of)(const void *string, size_t *len);
static void *(*create_user)(const char *name);
static void *(*find_user)(void *name);
static void (*free_user)(void *user);
static int (*set_rights)(void *user, const char *rights);
static int (*set_context_user)(void *ctx, const void *user);
static int (*reply_with_text)(void *ctx, const char *text);
static void *(*create_string)(void *ctx, const char *bytes, size_t len);
static void *(*register_filter)(void *ctx, void (*filter)(void *), int flags);
static const void *(*filtered_word)(void *filtered, int at);
static int (*replace_word)(void *filtered, int at, void *string);

static void *(*block_client)(void *ctx, void *reply, void *timeout, void *free, long long ms);
static int (*unblock_client)(void *client, void *data);
static void *(*thread_context)(void *client);
static void (*free_thread_context)(void *ctx);
static void (*lock_server)(void *ctx);
static void (*unlock_server)(void *ctx);

static int pass_on(void *ctx, const char *format, void **argv, int argc) {
    if (argc < 2) return wrong_arity(ctx);
    return reply_with(ctx, call(ctx, text_of(argv[1], NULL), format, argv + 2, (size_t)(argc - 2)));
}

static int call_plainly(void *ctx, void **argv, int argc) { return pass_on(ctx, "Ev", argv, argc); }

static int call_as_user(void *ctx, void **argv, int argc) { return pass_on(ctx, "ECv", argv, argc); }

static int call_as_own(void *ctx, void **argv, int argc) {
    void *own = create_user("own");
    set_rights(own, "on");
    set_rights(own, "allcommands");
    set_rights(own, "allkeys");
    set_context_user(ctx, own);
    int status = pass_on(ctx, "ECv", argv, argc);
    free_user(own);
    return status;
}

static void *blocked;
static char called[3][32];

static void *call_with_lock(void *unused) {
    void *ctx = thread_context(blocked);
    lock_server(ctx);
    reply_with(ctx, call(ctx, called[0], "Ecc", called[1], called[2]));
    unlock_server(ctx);
    free_thread_context(ctx);
    unblock_client(blocked, NULL);
    return unused;
}

static int call_on_thread(void *ctx, void **argv, int argc) {
    if (argc != 4) return wrong_arity(ctx);
    for (int i = 0; i < 3; i++) snprintf(called[i], sizeof called[i], "%s", text_of(argv[i + 1], NULL));
    blocked = block_client(ctx, NULL, NULL, NULL, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, call_with_lock, NULL) != 0) return ERR;
    return pthread_detach(thread);
}

static char answered[32];

static void answer(void *filtered) {
    const char *name = text_of(filtered_word(filtered, 0), NULL);
    if (strcasecmp(name, answered) == 0) replace_word(filtered, 0, create_string(NULL, "PING", 4));
}

static int answer_pong(void *ctx, void **argv, int argc) {
    if (argc != 2) return wrong_arity(ctx);
    snprintf(answered, sizeof answered, "%s", text_of(argv[1], NULL));
    register_filter(ctx, answer, 0);
    return reply_with_text(ctx, "OK");
}

static int take_keys(void *ctx, void **argv, int argc) {
    if (argc != 2) return wrong_arity(ctx);
    void *user = find_user(argv[1]);
    int status = set_rights(user, "resetkeys");
    free_user(user);
    return reply_with_text(ctx, status == OK ? "OK" : "not taken");
}

int RedisModule_OnLoad(void *ctx, void **argv, int argc) {
    (void)argv, (void)argc;
    get_api_fn *get_api = *(get_api_fn **)ctx;
    if (get_api("RedisModule_SetModuleAttribs", &set_attributes) != OK ||
        get_api("RedisModule_CreateCommand", &create_command) != OK ||
        get_api("RedisModule_Call", &call) != OK ||
        get_api("RedisModule_ReplyWithCallReply", &reply_with) != OK ||
        get_api("RedisModule_BlockClient", &block_client) != OK ||
        get_api("RedisModule_UnblockClient", &unblock_client) != OK ||
        get_api("RedisModule_GetThreadSafeContext", &thread_context) != OK ||
        get_api("RedisModule_FreeThreadSafeContext", &free_thread_context) != OK ||
        get_api("RedisModule_ThreadSafeContextLock", &lock_server) != OK ||
        get_api("RedisModule_ThreadSafeContextUnlock", &unlock_server) != OK ||
        get_api("RedisModule_WrongArity", &wrong_arity) != OK ||
        get_api("RedisModule_StringPtrLen", &text_of) != OK ||
        get_api("RedisModule_CreateModuleUser", &create_user) != OK ||
        get_api("RedisModule_FreeModuleUser", &free_user) != OK ||
        get_api("RedisModule_SetModuleUserACL", &set_rights) != OK ||
        get_api("RedisModule_GetModuleUserFromUserName", &find_user) != OK ||
        get_api("RedisModule_SetContextUser", &set_context_user) != OK ||
        get_api("RedisModule_ReplyWithSimpleString", &reply_with_text) != OK ||
        get_api("RedisModule_CreateString", &create_string) != OK ||
        get_api("RedisModule_RegisterCommandFilter", &register_filter) != OK ||
        get_api("RedisModule_CommandFilterArgGet", &filtered_word) != OK ||
        get_api("RedisModule_CommandFilterArgReplace", &replace_word) != OK)
        return ERR;
    set_attributes(ctx, "calling", 1, 1);
    if (create_command(ctx, "calling.call", call_plainly, "readonly", 0, 0, 0) != OK ||
        create_command(ctx, "calling.call_as_own", call_as_own, "readonly", 0, 0, 0) != OK ||
        create_command(ctx, "calling.call_on_thread", call_on_thread, "readonly", 0, 0, 0) != OK ||
        create_command(ctx, "calling.take_keys", take_keys, "readonly", 0, 0, 0) != OK ||
        create_command(ctx, "calling.answer_pong", answer_pong, "readonly", 0, 0, 0) != OK)
        return ERR;
    return create_command(ctx, "calling.call_as_user", call_as_user, "readonly", 0, 0, 0);
}
