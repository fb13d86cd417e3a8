// Package play is what the clients written in Go share: the steps in order with their deadlines, the lines they print, and what the scenario says about
// records and groups. It knows no client.
package play

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

const (
	stepWithin = 30 * time.Second
	allWithin  = 2 * time.Minute
	askEvery   = 20 * time.Millisecond
)

// Saw is what a step saw; its keys are those of the README's table.
type Saw map[string]any

// Step is one row of the README's table. Do ends when its context does.
type Step struct {
	Name string
	Do   func(context.Context) (Saw, error)
}

// Arguments are the bootstrap address and the prefix of every name. The program ends if there are not two.
func Arguments() (bootstrap, prefix string) {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: COMMAND BOOTSTRAP PREFIX")
		os.Exit(2)
	}
	return os.Args[1], os.Args[2]
}

// Run plays the steps in order and prints a line for each, also for one that does not come back or for which no time is left.
func Run(steps []Step) {
	all, cancel := context.WithTimeout(context.Background(), allWithin)
	defer cancel()
	for _, step := range steps {
		started := time.Now()
		saw, err := played(all, step)
		if err != nil {
			printed(map[string]any{"step": step.Name, "failed": err.Error()})
		} else {
			printed(map[string]any{"step": step.Name, "saw": saw})
		}
		fmt.Fprintf(os.Stderr, "%s: %d ms\n", step.Name, time.Since(started).Milliseconds())
	}
}

// played leaves a step that does not heed its context behind: some calls of some libraries take none.
func played(all context.Context, step Step) (Saw, error) {
	if all.Err() != nil {
		return nil, fmt.Errorf("not begun: %w", all.Err())
	}
	type ended struct {
		saw Saw
		err error
	}
	ctx, cancel := context.WithTimeout(all, stepWithin)
	defer cancel()
	end := make(chan ended, 1)
	go func() {
		defer func() {
			if panicked := recover(); panicked != nil {
				end <- ended{err: fmt.Errorf("panic: %v", panicked)}
			}
		}()
		saw, err := step.Do(ctx)
		end <- ended{saw, err}
	}()
	select {
	case e := <-end:
		return e.saw, e.err
	case <-ctx.Done():
		select {
		case e := <-end:
			return e.saw, e.err
		case <-time.After(time.Second):
			return nil, fmt.Errorf("did not end: %w", ctx.Err())
		}
	}
}

func printed(line map[string]any) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(text))
}

// Until asks again and again until the answer is yes or an error, or the context ends.
func Until(ctx context.Context, answer func() (bool, error)) error {
	for {
		yes, err := answer()
		if yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(askEvery):
		}
	}
}
