package probe

import "container/heap"

// queue holds targets by when they are due, earliest first. A target knows its
// position, so that one can be moved or taken out.
type queue []*target

// Len is part of heap.Interface.
func (q *queue) Len() int { return len(*q) }

// Less is part of heap.Interface.
func (q *queue) Less(i, j int) bool { return (*q)[i].due.Before((*q)[j].due) }

// Swap is part of heap.Interface.
func (q *queue) Swap(i, j int) {
	(*q)[i], (*q)[j] = (*q)[j], (*q)[i]
	(*q)[i].at, (*q)[j].at = i, j
}

// Push is part of heap.Interface.
func (q *queue) Push(x any) {
	t := x.(*target)
	t.at = len(*q)
	*q = append(*q, t)
}

// Pop is part of heap.Interface.
func (q *queue) Pop() any {
	old := *q
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	t.at = -1
	return t
}

// first is the target that is due first, or nil.
func (q *queue) first() *target {
	if len(*q) == 0 {
		return nil
	}
	return (*q)[0]
}

func (q *queue) add(t *target) { heap.Push(q, t) }

func (q *queue) remove(t *target) { heap.Remove(q, t.at) }
