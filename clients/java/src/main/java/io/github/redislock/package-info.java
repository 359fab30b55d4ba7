/** Distributed locks of the redis-lock module. Begin with {@link io.github.redislock.Locks}. */
@NullMarked
package io.github.redislock;

import org.jspecify.annotations.NullMarked;
