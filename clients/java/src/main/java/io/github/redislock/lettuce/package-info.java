/** Locks on Lettuce. */
@NullMarked
package io.github.redislock.lettuce;

import org.jspecify.annotations.NullMarked;
