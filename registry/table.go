package registry

// table is a map that may lie over another one: an overlay's reads fall
// through to what it was begun on, its writes stay its own.
type table[K comparable, V any] struct {
	rows  map[K]V
	gone  map[K]struct{} // deleted here, present under
	under *table[K, V]
}

func newTable[K comparable, V any](under *table[K, V]) *table[K, V] {
	return &table[K, V]{under: under}
}

func (t *table[K, V]) get(k K) (V, bool) {
	if v, ok := t.rows[k]; ok {
		return v, true
	}
	if _, ok := t.gone[k]; ok || t.under == nil {
		var zero V
		return zero, false
	}
	return t.under.get(k)
}

func (t *table[K, V]) set(k K, v V) {
	if t.rows == nil {
		t.rows = make(map[K]V)
	}
	t.rows[k] = v
	delete(t.gone, k)
}

func (t *table[K, V]) del(k K) {
	delete(t.rows, k)
	if t.under == nil {
		return
	}
	if t.gone == nil {
		t.gone = make(map[K]struct{})
	}
	t.gone[k] = struct{}{}
}

// fold moves the table's own writes into the one under it.
func (t *table[K, V]) fold() {
	for k := range t.gone {
		t.under.del(k)
	}
	for k, v := range t.rows {
		t.under.set(k, v)
	}
}

// multi counts how often each element belongs to a key, over another multi if
// there is one. An element with count zero is absent.
type multi[K, E comparable] struct {
	rows  map[K]map[E]int
	under *multi[K, E]
}

func newMulti[K, E comparable](under *multi[K, E]) *multi[K, E] {
	return &multi[K, E]{under: under}
}

func (m *multi[K, E]) count(k K, e E) int {
	if n, ok := m.rows[k][e]; ok || m.under == nil {
		return n
	}
	return m.under.count(k, e)
}

func (m *multi[K, E]) add(k K, e E, n int) { m.put(k, e, m.count(k, e)+n) }

func (m *multi[K, E]) put(k K, e E, n int) {
	if n == 0 && m.under == nil {
		delete(m.rows[k], e)
		if len(m.rows[k]) == 0 {
			delete(m.rows, k)
		}
		return
	}
	if m.rows == nil {
		m.rows = make(map[K]map[E]int)
	}
	if m.rows[k] == nil {
		m.rows[k] = make(map[E]int)
	}
	m.rows[k][e] = n
}

// each yields the elements of a key, in no order, until yield returns false.
// The multi must not be written meanwhile.
func (m *multi[K, E]) each(k K, yield func(E) bool) bool {
	own := m.rows[k]
	for e, n := range own {
		if n > 0 && !yield(e) {
			return false
		}
	}
	if m.under == nil {
		return true
	}
	return m.under.each(k, func(e E) bool {
		if _, overridden := own[e]; overridden {
			return true
		}
		return yield(e)
	})
}

// list returns the elements of a key as a slice of its own.
func (m *multi[K, E]) list(k K) []E {
	var out []E
	m.each(k, func(e E) bool { out = append(out, e); return true })
	return out
}

func (m *multi[K, E]) fold() {
	for k, es := range m.rows {
		for e, n := range es {
			m.under.put(k, e, n)
		}
	}
}
