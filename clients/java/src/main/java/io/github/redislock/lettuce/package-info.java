/** Locks on Lettuce. */
package io.github.redislock.lettuce;
