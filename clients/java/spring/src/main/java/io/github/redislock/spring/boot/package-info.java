/** The locks of a Spring Boot application, from its own Redis settings. */
package io.github.redislock.spring.boot;
