/** Work under a lock, in the form of Spring's templates. */
package io.github.redislock.spring;
