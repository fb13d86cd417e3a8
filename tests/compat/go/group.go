package play

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Member of a group. Its client says which partitions of the one topic it holds, and what it reads.
type Member struct {
	group *pair
	holds int
}

// Holds sets how many partitions the member has been assigned.
func (m *Member) Holds(partitions int) {
	m.group.Lock()
	defer m.group.Unlock()
	m.holds = partitions
}

// Adds to how many partitions the member has been assigned; less than nothing takes away.
func (m *Member) Adds(partitions int) {
	m.group.Lock()
	defer m.group.Unlock()
	m.holds += partitions
}

// Read says that the member read a record.
func (m *Member) Read(partition int32, offset int64) {
	m.group.Lock()
	defer m.group.Unlock()
	m.group.read[place{partition, offset}] = true
}

// Failed says that the member came to grief: the step ends with this error.
func (m *Member) Failed(err error) {
	m.group.Lock()
	defer m.group.Unlock()
	if m.group.failed == nil {
		m.group.failed = err
	}
}

type place struct {
	partition int32
	offset    int64
}

type pair struct {
	sync.Mutex
	read   map[place]bool
	failed error
}

func (p *pair) until(ctx context.Context, what string, a, b *Member, reached func(a, b, read int) bool) error {
	state := func() (int, int, int, error) {
		p.Lock()
		defer p.Unlock()
		return a.holds, b.holds, len(p.read), p.failed
	}
	err := Until(ctx, func() (bool, error) {
		inA, inB, read, failed := state()
		return reached(inA, inB, read), failed
	})
	if err != nil {
		inA, inB, read, _ := state()
		return fmt.Errorf("waiting for %s: A has %d partitions, B has %d, %d records read: %w", what, inA, inB, read, err)
	}
	return nil
}

// Join makes a member that reads and commits in the background until it leaves.
type Join func(context.Context, *Member) (leave func() error, err error)

// GroupOfTwo plays that step with members of the client's making.
func GroupOfTwo(ctx context.Context, join Join) (Saw, error) {
	group := &pair{read: map[place]bool{}}
	a, b := &Member{group: group}, &Member{group: group}
	leave, err := join(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("A: %w", err)
	}
	saw, err := group.played(ctx, join, a, b)
	return saw, errors.Join(err, leave())
}

// played is what A sees of it, which has joined.
func (p *pair) played(ctx context.Context, join Join, a, b *Member) (Saw, error) {
	alone := func(inA, _, _ int) bool { return inA == Partitions }
	if err := p.until(ctx, "A alone", a, b, alone); err != nil {
		return nil, err
	}

	leave, err := join(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("B: %w", err)
	}
	var together []int
	shared := func(inA, inB, _ int) bool {
		together = []int{min(inA, inB), max(inA, inB)}
		return inA > 0 && inB > 0 && inA+inB == Partitions
	}
	if err := errors.Join(p.until(ctx, "the two to share", a, b, shared), leave()); err != nil {
		return nil, err
	}

	again := func(inA, _, read int) bool { return inA == Partitions && read >= RecordCount }
	if err := p.until(ctx, "A alone again", a, b, again); err != nil {
		return nil, err
	}
	p.Lock()
	defer p.Unlock()
	return Saw{"alone": Partitions, "together": together, "again": Partitions, "records": len(p.read)}, nil
}
