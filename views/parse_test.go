package views

import "testing"

// FuzzParse: what is accepted as a version or a name is exactly what is written.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"i17", "i017", "7.42", "0.0", "07.1", "18446744073709551615.1", "1.2.3", "shop/checkout", "shop/Checkout", "a/b/c", "/", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := ParseVersion(s); err == nil && v.String() != s {
			t.Errorf("version %q is read as %v", s, v)
		}
		if n, err := ParseName(s); err == nil && n.String() != s {
			t.Errorf("name %q is read as %v", s, n)
		}
		if uid, err := ParseUID(s); err == nil && uid.String() != s {
			t.Errorf("uid %q is read as %v", s, uid)
		}
	})
}

// TestVersionOrder: epochs before seqs, and parsing what is written.
func TestVersionOrder(t *testing.T) {
	order := []Version{{}, {1, 9}, {2, 1}, {2, 2}}
	for i, a := range order {
		for j, b := range order {
			if a.Less(b) != (i < j) {
				t.Errorf("%v before %v: %v", a, b, a.Less(b))
			}
		}
		if got, err := ParseVersion(a.String()); err != nil || got != a {
			t.Errorf("%v is read as %v, %v", a, got, err)
		}
	}
	if !order[0].IsZero() || order[1].IsZero() {
		t.Error("only the zero version is zero")
	}
}
