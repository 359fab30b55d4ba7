// Command conformance is the driver of the conformance suite. It executes orders, each a line of
// JSON, with this library.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	redislock "github.com/redis-lock/redis-lock/clients/go"
)

// order is an order. Its numbers may be some that no Go type has.
type order map[string]any

var errUnrepresentable = errors.New("no value of the Go type")

func (o order) text(name string) string {
	text, _ := o[name].(string)
	return text
}

func (o order) isTrue(name string) bool { return o[name] == true }

func (o order) number(name string, most float64) (float64, error) {
	value, isNumber := o[name].(float64)
	if !isNumber || math.Abs(value) >= most {
		return 0, errUnrepresentable
	}
	return value, nil
}

func (o order) duration(name string) (time.Duration, error) {
	ms, err := o.number(name, math.MaxInt64/1e6)
	return time.Duration(ms * 1e6), err
}

func (o order) count(name string) (int, error) {
	count, err := o.number(name, math.MaxInt64)
	if count != math.Trunc(count) {
		return 0, errUnrepresentable
	}
	return int(count), err
}

// texts returns a list of texts.
func (o order) texts(name string) ([]string, error) {
	items, _ := o[name].([]any)
	texts := make([]string, 0, len(items))
	for _, item := range items {
		text, isText := item.(string)
		if !isText {
			return nil, errUnrepresentable
		}
		texts = append(texts, text)
	}
	return texts, nil
}

type answer map[string]any

type driver struct {
	client redis.UniversalClient
	locks  *redislock.Locks
	mu     sync.Mutex
	named  map[string]*redislock.Lock
	// The latest grant of each lock.
	grants  map[string]*redislock.Grant
	cancels map[any]context.CancelFunc
}

var saying sync.Mutex

func say(line answer) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	saying.Lock()
	defer saying.Unlock()
	// The reader may be gone, and then this driver ends soon as well.
	_, _ = os.Stdout.Write(append(text, '\n'))
}

func main() {
	d := &driver{
		named: map[string]*redislock.Lock{}, grants: map[string]*redislock.Grant{},
		cancels: map[any]context.CancelFunc{},
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			panic(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.cancels[o["id"]] = cancel
		d.mu.Unlock()
		obey := func() {
			line, err := d.obey(ctx, o)
			if err != nil {
				line = answer{"error": nameOf(err), "text": err.Error()}
			}
			line["id"] = o["id"]
			say(line)
		}
		if o["do"] == "connect" || o["do"] == "lock" {
			obey()
		} else {
			go obey()
		}
	}
	// The held locks are not released.
	os.Exit(0)
}

// failure is the error of a block itself.
type failure string

func (f failure) Error() string { return string(f) }

func nameOf(err error) string {
	var argument *redislock.ArgumentError
	var own failure
	names := []struct {
		is   bool
		name string
	}{
		{errors.As(err, &own), "failed"},
		{errors.As(err, &argument), "argument"},
		{errors.Is(err, errUnrepresentable), "unrepresentable"},
		{errors.Is(err, redislock.ErrUnavailable), "unavailable"},
		{errors.Is(err, redislock.ErrNotAcquired), "not_acquired"},
		{errors.Is(err, redislock.ErrLost), "lost"},
		{errors.Is(err, redislock.ErrNotHeld), "misuse"},
		{errors.Is(err, context.Canceled), "cancelled"},
		{errors.Is(err, redislock.ErrDeadlock), "deadlock"},
		{errors.Is(err, redislock.ErrModuleMissing), "module_missing"},
		{errors.Is(err, redislock.ErrNotReplicated), "not_replicated"},
	}
	for _, each := range names {
		if each.is {
			return each.name
		}
	}
	for _, code := range []string{"NOPERM", "NOAUTH", "WRONGPASS"} {
		if strings.Contains(err.Error(), code) {
			return "denied"
		}
	}
	return "other"
}

func (d *driver) obey(ctx context.Context, o order) (answer, error) {
	d.mu.Lock()
	lock, grant, cancel := d.named[o.text("lock")], d.grants[o.text("lock")], d.cancels[o["of"]]
	d.mu.Unlock()
	ok := answer{"ok": true}
	switch o.text("do") {
	case "connect":
		return ok, d.connect(o)
	case "lock":
		return ok, d.lock(o)
	case "acquire":
		return d.acquire(ctx, lock, o)
	case "cancel":
		cancel()
		return ok, nil
	case "block":
		return d.block(ctx, lock, o)
	case "write":
		return d.write(ctx, lock, o)
	case "storm":
		return storm(ctx, lock, o)
	case "release_all":
		count, err := d.locks.ReleaseAll(ctx)
		return answer{"ok": true, "count": count}, err
	case "texts":
		return answer{"ok": true, "text": texts(lock) + texts(d.locks) + texts(grant)}, nil
	}
	if grant == nil {
		answers := map[string]answer{
			"left": {"ok": true, "ms": 0}, "owned": {"ok": false}, "state": {"ok": true, "lost": false, "fence": nil},
		}
		if line := answers[o.text("do")]; line != nil {
			return line, nil
		}
		return nil, redislock.ErrNotHeld
	}
	return withGrant(ctx, grant, o)
}

func withGrant(ctx context.Context, grant *redislock.Grant, o order) (answer, error) {
	switch o.text("do") {
	case "release":
		err := grant.Release(ctx)
		return answer{"ok": err == nil}, unlessLost(err)
	case "extend":
		lease, err := o.duration("lease_ms")
		if err == nil {
			err = grant.Extend(ctx, lease)
		}
		return answer{"ok": err == nil}, unlessLost(err)
	case "left":
		return answer{"ok": true, "ms": grant.Left().Milliseconds()}, nil
	case "owned":
		owned, err := grant.Owned(ctx)
		return answer{"ok": owned}, err
	case "state":
		return answer{"ok": true, "lost": grant.IsLost(), "fence": grant.Fence(), "token": grant.Token()}, nil
	}
	return nil, errors.New("no such order: " + o.text("do"))
}

// unlessLost returns nil for a loss, which the answer's "ok" tells.
func unlessLost(err error) error {
	if errors.Is(err, redislock.ErrLost) {
		return nil
	}
	return err
}

func texts(value any) string {
	text, err := json.Marshal(value)
	return fmt.Sprintf("%v %+v %#v %s %v\n", value, value, value, text, err)
}

func (d *driver) connect(o order) error {
	servers, err := o.texts("servers")
	if err != nil {
		return err
	}
	if !o.isTrue("cluster") && o.text("sentinel") == "" {
		// Several addresses would be those of a cluster.
		servers = servers[:1]
	}
	options := &redis.UniversalOptions{
		Addrs: servers, MasterName: o.text("sentinel"), IsClusterMode: o.isTrue("cluster"),
		Username: o.text("username"), Password: o.text("password"),
	}
	observer := redislock.Observer{
		Waited: func(lock *redislock.Lock, waited time.Duration, outcome redislock.Outcome) {
			say(answer{"event": "waited", "lock": d.nameOf(lock), "ms": waited.Milliseconds(), "outcome": outcome})
		},
		Granted: func(grant *redislock.Grant) {
			say(answer{"event": "granted", "lock": d.nameOf(grant.Lock())})
		},
		Unavailable: func(err error) { say(answer{"event": "unavailable", "text": err.Error()}) },
	}
	with := []redislock.LocksOption{redislock.WithObserver(observer)}
	if o["command_timeout_ms"] != nil {
		timeout, err := o.duration("command_timeout_ms")
		if err != nil {
			return err
		}
		with = append(with, redislock.WithCommandTimeout(timeout))
	}
	d.client = redis.NewUniversalClient(options)
	d.locks, err = redislock.New(d.client, with...)
	return err
}

func (d *driver) nameOf(lock *redislock.Lock) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, named := range d.named {
		if named == lock {
			return name
		}
	}
	return ""
}

func (d *driver) lock(o order) error {
	keys, err := o.texts("keys")
	if err != nil {
		return err
	}
	with, err := options(o)
	if err != nil {
		return err
	}
	lock, err := d.locks.LockAll(keys, with...)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.named[o.text("lock")] = lock
	return nil
}

func options(o order) ([]redislock.Option, error) {
	with := []redislock.Option{
		redislock.WithOnLost(func(*redislock.Grant) { say(answer{"event": "lost", "lock": o["lock"]}) }),
	}
	var failed error
	durations := map[string]func(time.Duration) redislock.Option{
		"lease_ms": redislock.WithLease, "wait_ms": redislock.WithWait, "keep_ms": redislock.WithKeep,
		"max_hold_ms": redislock.WithMaxHold, "at_least_ms": redislock.WithAtLeast,
		"margin_ms": redislock.WithMargin,
	}
	for name, option := range durations {
		if o[name] != nil {
			d, err := o.duration(name)
			with, failed = append(with, option(d)), errors.Join(failed, err)
		}
	}
	counts := map[string]func(int) redislock.Option{
		"limit": redislock.WithLimit, "permits": redislock.WithPermits, "replicas": redislock.WithReplicas,
	}
	for name, option := range counts {
		if o[name] != nil {
			count, err := o.count(name)
			with, failed = append(with, option(count)), errors.Join(failed, err)
		}
	}
	if o["renew"] == false {
		with = append(with, redislock.WithoutRenewal())
	}
	if o.isTrue("shared") {
		with = append(with, redislock.WithShared())
	}
	if o.isTrue("session") {
		with = append(with, redislock.WithSession())
	}
	if data, isSet := o["data"].(string); isSet {
		with = append(with, redislock.WithData(data))
	}
	return with, failed
}

func (d *driver) acquire(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	var grant *redislock.Grant
	var err error
	if o["wait_ms"] != nil {
		wait, unrepresentable := o.duration("wait_ms")
		if unrepresentable != nil {
			return nil, unrepresentable
		}
		grant, err = lock.AcquireWithin(ctx, wait)
	} else {
		grant, err = lock.Acquire(ctx)
	}
	switch {
	case errors.Is(err, redislock.ErrNotAcquired):
		return answer{"ok": false}, nil
	case err != nil:
		return nil, err
	}
	d.keep(o.text("lock"), grant)
	return answer{"ok": true, "fence": grant.Fence(), "token": grant.Token()}, nil
}

func (d *driver) keep(name string, grant *redislock.Grant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.grants[name] = grant
}

// guarded calls work in a guarded block.
func guarded(ctx context.Context, lock *redislock.Lock, o order, work func(context.Context, *redislock.Grant) error) error {
	if o["wait_ms"] == nil {
		return lock.Do(ctx, work)
	}
	wait, err := o.duration("wait_ms")
	if err != nil {
		return err
	}
	return lock.DoWithin(ctx, wait, work)
}

func (d *driver) block(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	work, err := o.duration("work_ms")
	if err != nil {
		return nil, err
	}
	var entered int64
	err = guarded(ctx, lock, o, func(_ context.Context, grant *redislock.Grant) error {
		entered = grant.Fence()
		d.keep(o.text("lock"), grant)
		say(answer{"event": "in", "lock": o["lock"]})
		time.Sleep(work)
		if fail, isSet := o["fail"].(string); isSet {
			return failure(fail)
		}
		return nil
	})
	return answer{"ok": true, "fence": entered}, err
}

// write appends the fence to a list until the loss ends the block.
func (d *driver) write(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	err := guarded(ctx, lock, o, func(ctx context.Context, grant *redislock.Grant) error {
		for ctx.Err() == nil {
			if err := d.client.RPush(ctx, o.text("list"), grant.Fence()).Err(); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return ctx.Err()
	})
	return answer{"ok": true}, err
}

// storm has many goroutines acquire a lock with short limits, again and again.
func storm(ctx context.Context, lock *redislock.Lock, o order) (answer, error) {
	tasks, err := o.count("tasks")
	seconds, noSeconds := o.number("seconds", 100)
	mostWait, noWait := o.duration("most_wait_ms")
	if err := errors.Join(err, noSeconds, noWait); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var releases []float64
	mostLate := 0.0
	until := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	acquires := func() error {
		for time.Now().Before(until) {
			wait := rand.N(mostWait)
			began := time.Now()
			grant, err := lock.AcquireWithin(ctx, wait)
			late := time.Since(began) - wait
			mu.Lock()
			mostLate = max(mostLate, ms(late))
			mu.Unlock()
			if errors.Is(err, redislock.ErrNotAcquired) || errors.Is(err, redislock.ErrUnavailable) {
				continue
			}
			if err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			began = time.Now()
			if err := grant.Release(ctx); err != nil {
				return err
			}
			mu.Lock()
			releases = append(releases, ms(time.Since(began)))
			mu.Unlock()
		}
		return nil
	}
	failures := make(chan error, tasks)
	for range tasks {
		go func() { failures <- acquires() }()
	}
	var failed error
	for range tasks {
		failed = errors.Join(failed, <-failures)
	}
	slices.Sort(releases)
	p99 := 0.0
	if len(releases) > 0 {
		p99 = releases[len(releases)*99/100]
	}
	return answer{"ok": true, "grants": len(releases), "release_p99_ms": p99, "most_late_ms": mostLate}, failed
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
