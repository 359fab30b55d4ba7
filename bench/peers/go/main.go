// Goroutines that contend for one lock, with the one client of their process.
//
// Called as `peers LIBRARY PORT CONTENDERS WARM_SECONDS HELD_MS OTHER_MS`. Each contender has the
// lock for HELD_MS, and does without it for OTHER_MS before it asks again. Prints `ready`
// WARM_SECONDS after the first grant of this process. Counts from the line `begin` to the line
// `end` of its input, and then prints a line of JSON: the grants of each contender, all waits in
// microseconds, the seconds, and the processor time of this process in that time.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	key   = "lock"
	lease = 30 * time.Second
)

// acquire acquires the lock once, and returns the function that releases it.
type acquire func() (release func() error, err error)

// library returns a function that makes the acquire of one contender.
type library func(client *redis.Client) (func() acquire, error)

// contender is what one goroutine has counted.
type contender struct {
	mutex  sync.Mutex
	grants int
	waits  []int64
	since  time.Time
}

func (c *contender) contend(once acquire, held, other time.Duration) error {
	for {
		c.asks()
		release, err := once()
		if err != nil {
			return err
		}
		c.granted()
		time.Sleep(held)
		if err := release(); err != nil {
			return err
		}
		time.Sleep(other)
	}
}

func (c *contender) asks() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.since = time.Now()
}

func (c *contender) granted() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.grants++
	c.waits = append(c.waits, time.Since(c.since).Microseconds())
	c.since = time.Time{}
}

func (c *contender) clear() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.grants, c.waits = 0, nil
}

// counted returns the grants and the waits since clear. A wait that isn't over counts with its age.
func (c *contender) counted() (int, []int64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	waits := c.waits
	if !c.since.IsZero() {
		waits = append(waits, time.Since(c.since).Microseconds())
	}
	return c.grants, waits
}

type told struct {
	Grants  []int   `json:"grants"`
	Waits   []int64 `json:"waits"`
	Seconds float64 `json:"seconds"`
	CPU     float64 `json:"cpu"`
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

func main() {
	libraries := map[string]library{"redsync": redsyncs, "redislock": redislocks, "redis-lock": ours}
	begins, known := libraries[os.Args[1]]
	if !known {
		log.Fatalf("no library is called %s", os.Args[1])
	}
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	warm, held, other := duration(os.Args[4]+"s"), duration(os.Args[5]+"ms"), duration(os.Args[6]+"ms")
	prepare, err := begins(redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[2]}))
	if err != nil {
		log.Fatal(err)
	}
	contenders := make([]contender, count)
	for index := range contenders {
		once := prepare()
		go func() { log.Fatal(contenders[index].contend(once, held, other)) }()
	}
	for !granted(contenders) {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(warm)
	report(contenders)
}

func duration(text string) time.Duration {
	parsed, err := time.ParseDuration(text)
	if err != nil {
		log.Fatal(err)
	}
	return parsed
}

// granted returns true if a contender was granted the lock.
func granted(contenders []contender) bool {
	for index := range contenders {
		if grants, _ := contenders[index].counted(); grants > 0 {
			return true
		}
	}
	return false
}

// report counts between two lines of the input.
func report(contenders []contender) {
	input := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	input.Scan()
	for index := range contenders {
		contenders[index].clear()
	}
	begin, cpu := time.Now(), cpuSeconds()
	input.Scan()
	result := told{Seconds: time.Since(begin).Seconds(), CPU: cpuSeconds() - cpu}
	for index := range contenders {
		grants, waits := contenders[index].counted()
		result.Grants = append(result.Grants, grants)
		result.Waits = append(result.Waits, waits...)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		log.Fatal(err)
	}
}
