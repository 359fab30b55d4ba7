// Package shape lets the packages in place of other lock libraries ask for what only their users
// need.
package shape

import "context"

// Shape is how a drop-in acquires and extends. A grant that is acquired with a Shape isn't released
// when it is collected, and an extension with a Shape may shorten the lease.
type Shape struct {
	// Token is the token that the program chose, or "". Another process may use it, so it must not
	// be turned away later.
	Token string
}

type key struct{}

// In returns a context that has a Shape.
func In(ctx context.Context, s Shape) context.Context { return context.WithValue(ctx, key{}, s) }

// Of returns the Shape of a context, and false if it has none.
func Of(ctx context.Context) (Shape, bool) {
	s, isThere := ctx.Value(key{}).(Shape)
	return s, isThere
}
