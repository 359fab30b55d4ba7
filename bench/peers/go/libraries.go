package main

import (
	"context"
	"errors"
	"math"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redislock "github.com/redis-lock/redis-lock/clients/go"
	"github.com/redis/go-redis/v9"
)

// redsyncs is redsync on one server: polls after 50 to 250 ms, here until the lock is granted.
func redsyncs(client *redis.Client) (func() acquire, error) {
	pool := redsync.New(goredis.NewPool(client))
	return func() acquire {
		return func() (func() error, error) {
			mutex := pool.NewMutex(key, redsync.WithExpiry(lease), redsync.WithTries(math.MaxInt32))
			release := func() error {
				held, err := mutex.Unlock()
				if err == nil && !held {
					err = errors.New("not released")
				}
				return err
			}
			return release, mutex.Lock()
		}
	}, nil
}

// redislocks is bsm/redislock, which polls every 100 ms as in its examples, here for up to an hour.
func redislocks(client *redis.Client) (func() acquire, error) {
	locker := bsm.New(client)
	return func() acquire {
		return func() (func() error, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			retry := bsm.LinearBackoff(100 * time.Millisecond)
			lock, err := locker.Obtain(ctx, key, lease, &bsm.Options{RetryStrategy: retry})
			if err != nil {
				return nil, err
			}
			return func() error { return lock.Release(context.Background()) }, nil
		}
	}, nil
}

// ours is this project's client with its defaults: waits in the server's queue, renews the lease.
func ours(client *redis.Client) (func() acquire, error) {
	locks, err := redislock.New(client)
	if err != nil {
		return nil, err
	}
	lock, err := locks.Lock(key)
	if err != nil {
		return nil, err
	}
	return func() acquire {
		return func() (func() error, error) {
			ctx := context.Background()
			grant, err := lock.Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return func() error { return grant.Release(ctx) }, nil
		}
	}, nil
}
