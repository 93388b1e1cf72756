package health

import (
	"cmp"
	"slices"
	"time"
)

// ageOut names the instances whose membership after a lapse is over, the
// longest lapsed first, and never the last that the service has.
func (e *Evaluator) ageOut(aged []*instance, now time.Time, o *Judgement) {
	if len(aged) == 0 {
		return
	}
	slices.SortFunc(aged, func(a, b *instance) int {
		return cmp.Or(a.lease.lapsedAt.Compare(b.lease.lapsedAt), byUID(a, b))
	})
	kept := e.kept()
	for _, i := range aged {
		i.askAt = now.Add(askAgain)
		if e.published(i) {
			if !i.leaving {
				kept.count(i, -1)
			}
			if i.leaving = kept.spare(i); !i.leaving {
				kept.count(i, 1)
				continue
			}
		}
		o.AgedOut = append(o.AgedOut, i.row.UID)
	}
}

// published reports whether the instance counts as one that its service has:
// where there is no member, one that could stand in for it does.
func (e *Evaluator) published(i *instance) bool {
	return i.member || e.members == 0 && i.proved()
}

// keptCount counts the published instances that are not about to be removed.
type keptCount struct{ staying, draining int }

func (e *Evaluator) kept() *keptCount {
	k := &keptCount{}
	for _, i := range e.instances {
		if i.leaving && !i.lease.ended {
			i.leaving = false // it renewed before it was removed
		}
		if e.published(i) && !i.leaving {
			k.count(i, 1)
		}
	}
	return k
}

func (k *keptCount) count(i *instance, n int) {
	if i.draining() {
		k.draining += n
	} else {
		k.staying += n
	}
}

// spare reports whether enough is left without i: for one that drains
// anything, for another one something that stays.
func (k *keptCount) spare(i *instance) bool {
	if i.draining() {
		return k.staying+k.draining > 0
	}
	return k.staying > 0
}
