/** The lock provider of ShedLock. */
package io.github.redislock.spring.shedlock;
