package redislock

import (
	"fmt"
	"testing"
	"time"
)

func TestPausesDoubleUpToASecond(t *testing.T) {
	var pauses []time.Duration
	for pause := firstPause; len(pauses) < 7; pause = longer(pause) {
		pauses = append(pauses, pause)
	}
	const expected = "[50ms 100ms 200ms 400ms 800ms 1s 1s]"
	if said := fmt.Sprint(pauses); said != expected {
		t.Errorf("%s instead of %s", said, expected)
	}
}

func TestMillisecondsAreRoundedUp(t *testing.T) {
	for d, expected := range map[time.Duration]int64{
		-time.Second: 1, 0: 1, time.Nanosecond: 1, time.Millisecond: 1, time.Millisecond + 1: 2, time.Second: 1000,
	} {
		if ms(d) != expected {
			t.Errorf("%v: %d instead of %d", d, ms(d), expected)
		}
	}
}
