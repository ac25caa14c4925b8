// Package crashes kills Bobbin's processes at every named point, and at random, and judges what is left.
//
// A Wire stands between one process and Postgres and speaks just enough of the protocol to know what each transaction writes:
//
//	process ──▶ Wire ──▶ Postgres
//	            │  ▲
//	  before ◀──┘  └──▶ after
//
// "commit round 2, before" is a point: what writes the second round, and its COMMIT, came as far as the Wire and no farther.
// "commit round 2, after" is another: Postgres has committed, and its answer came as far as the Wire. At the point where a
// Plan is armed the Wire kills its process with SIGKILL, refuses in Postgres's name, or breaks the connection in the middle
// of the answer. The points beside Postgres are those of the model's provider and of the tools' server.
//
// A scene is one conversation with all that can be interrupted in it. It is played once without a fault, which lists the
// points, and then once for each. What is left is a Record, and Judge says what is wrong with it: nothing may be.
package crashes
