/** The border between the locks and the Redis clients that they run on. */
@NullMarked
package io.github.redislock.spi;

import org.jspecify.annotations.NullMarked;
