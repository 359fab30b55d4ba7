/** Distributed locks of the redis-lock module. Begin with {@link io.github.redislock.Locks}. */
package io.github.redislock;
