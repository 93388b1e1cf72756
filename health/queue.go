package health

import (
	"container/heap"
	"time"
)

// queue orders instances by when they must be judged again. A key may be
// earlier than needed and is moved only when it is popped: evidence that pushes
// an instance's silence further away then costs nothing here.
type queue []*instance

func (q queue) Len() int           { return len(q) }
func (q queue) Less(a, b int) bool { return q[a].due.Before(q[b].due) }
func (q queue) Swap(a, b int) {
	q[a], q[b] = q[b], q[a]
	q[a].index, q[b].index = a, b
}

// Push and Pop are heap.Interface's; use schedule, drop and popDue.
func (q *queue) Push(x any) {
	i := x.(*instance)
	i.index = len(*q)
	*q = append(*q, i)
}

func (q *queue) Pop() any {
	old := *q
	i := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return i
}

// schedule sees to it that i is popped at at or before; zero: no need.
func (q *queue) schedule(i *instance, at time.Time) {
	switch {
	case at.IsZero():
		q.drop(i)
	case !i.queued:
		i.due, i.queued = at, true
		heap.Push(q, i)
	case at.Before(i.due):
		i.due = at
		heap.Fix(q, i.index)
	}
}

func (q *queue) drop(i *instance) {
	if i.queued {
		heap.Remove(q, i.index)
		i.queued = false
	}
}

// popDue takes one instance that is due, or nil.
func (q *queue) popDue(now time.Time) *instance {
	if len(*q) == 0 || (*q)[0].due.After(now) {
		return nil
	}
	i := heap.Pop(q).(*instance)
	i.queued = false
	return i
}

// next is when the first is due; zero: none.
func (q queue) next() time.Time {
	if len(q) == 0 {
		return time.Time{}
	}
	return q[0].due
}
