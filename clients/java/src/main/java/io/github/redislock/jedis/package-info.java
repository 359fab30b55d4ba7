/** Locks on Jedis. */
@NullMarked
package io.github.redislock.jedis;

import org.jspecify.annotations.NullMarked;
