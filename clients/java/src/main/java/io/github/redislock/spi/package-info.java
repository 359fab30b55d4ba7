/** The border between the locks and the Redis clients that they run on. */
package io.github.redislock.spi;
