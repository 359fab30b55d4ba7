/** The lock registry of Spring Integration. */
package io.github.redislock.spring.integration;
