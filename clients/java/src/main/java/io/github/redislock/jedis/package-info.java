/** Locks on Jedis. */
package io.github.redislock.jedis;
