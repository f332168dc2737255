"""The threads of a block as contexts of one thread of the system, in LLVM IR: who waits and who goes on (`threads.py`).

`enter` runs a block to its end: its result is the kernel's, or -1 where threads wait for one another.
"""

CONTEXT = 4608  # bytes of a `ucontext_t`, at most
STACK = 1 << 18  # bytes

# A thread is four words: 0 (it can run), 1 (it waits) or 2 (it has ended), a barrier, and its turn as the thread came.
# A barrier is its members, who is there, and its turns; the last one stands for all that lie in shared memory.
RUNTIME = """
@now = global i32 0
@block = global i32 0
@step = global i32 1
@ended = global i32 0
@code = global i64 0
@given = global [3 x i64] zeroinitializer
@numbers = global [2 x i32] zeroinitializer
@barriers = global ptr null
@fibers = global ptr null
@contexts = global ptr null
@stacks = global ptr null
@slots = global ptr null

declare i32 @getcontext(ptr)
declare i32 @swapcontext(ptr, ptr)
declare void @makecontext(ptr, ptr, i32, ...)

define i32 @sim_tid() {
  %tid = load i32, ptr @now
  ret i32 %tid
}
define i32 @sim_ctaid() {
  %block = load i32, ptr @block
  ret i32 %block
}
define i32 @sim_ntid() {
  %n = load i32, ptr @numbers
  ret i32 %n
}
define i32 @sim_nctaid() {
  %at = getelementptr i32, ptr @numbers, i64 1
  %n = load i32, ptr %at
  ret i32 %n
}
define ptr @words(ptr %all, i32 %number) {
  %place = mul i32 %number, 4
  %at = getelementptr i32, ptr %all, i32 %place
  ret ptr %at
}
define ptr @context(i32 %number) {
  %all = load ptr, ptr @contexts
  %place = mul i32 %number, CONTEXT
  %at = getelementptr i8, ptr %all, i32 %place
  ret ptr %at
}
define i1 @ready(i32 %number) {
  %fibers = load ptr, ptr @fibers
  %fiber = call ptr @words(ptr %fibers, i32 %number)
  %state = load i32, ptr %fiber
  %waits = icmp eq i32 %state, 1
  br i1 %waits, label %ask, label %say
say:
  %runs = icmp eq i32 %state, 0
  ret i1 %runs
ask:
  %barrier.at = getelementptr i32, ptr %fiber, i32 1
  %barrier.number = load i32, ptr %barrier.at
  %came.at = getelementptr i32, ptr %fiber, i32 2
  %came = load i32, ptr %came.at
  %barriers = load ptr, ptr @barriers
  %barrier = call ptr @words(ptr %barriers, i32 %barrier.number)
  %turn.at = getelementptr i32, ptr %barrier, i32 2
  %turn = load i32, ptr %turn.at
  %over = icmp ne i32 %turn, %came
  ret i1 %over
}
define void @next() noinline {
entry:
  %me = load i32, ptr @now
  %n = load i32, ptr @numbers
  %step = load i32, ptr @step
  br label %look
look:
  %k = phi i32 [ %me, %entry ], [ %other, %skip ]
  %sum = add i32 %k, %step
  %over = icmp uge i32 %sum, %n
  %less = sub i32 %sum, %n
  %other = select i1 %over, i32 %less, i32 %sum
  %can = call i1 @ready(i32 %other)
  br i1 %can, label %found, label %skip
skip:
  %all = icmp eq i32 %other, %me
  br i1 %all, label %end, label %look
found:
  %fibers = load ptr, ptr @fibers
  %fiber = call ptr @words(ptr %fibers, i32 %other)
  store i32 0, ptr %fiber
  %same = icmp eq i32 %other, %me
  br i1 %same, label %back, label %go
go:
  store i32 %other, ptr @now
  br label %turn
end:
  br label %turn
turn:
  %to = phi i32 [ %other, %go ], [ %n, %end ]
  %from.at = call ptr @context(i32 %me)
  %to.at = call ptr @context(i32 %to)
  %code = call i32 @swapcontext(ptr %from.at, ptr %to.at)
  ret void
back:
  ret void
}
define void @stay(i32 %number, i32 %turn) {
  %me = load i32, ptr @now
  %fibers = load ptr, ptr @fibers
  %fiber = call ptr @words(ptr %fibers, i32 %me)
  store i32 1, ptr %fiber
  %number.at = getelementptr i32, ptr %fiber, i32 1
  store i32 %number, ptr %number.at
  %came.at = getelementptr i32, ptr %fiber, i32 2
  store i32 %turn, ptr %came.at
  call void @next()
  ret void
}
define void @wait(i32 %number) noinline {
  %barriers = load ptr, ptr @barriers
  %barrier = call ptr @words(ptr %barriers, i32 %number)
  %members = load i32, ptr %barrier
  %there.at = getelementptr i32, ptr %barrier, i32 1
  %before = load i32, ptr %there.at
  %there = add i32 %before, 1
  %turn.at = getelementptr i32, ptr %barrier, i32 2
  %turn = load i32, ptr %turn.at
  %all = icmp eq i32 %there, %members
  br i1 %all, label %open, label %stay
open:
  store i32 0, ptr %there.at
  %more = add i32 %turn, 1
  store i32 %more, ptr %turn.at
  %whole = icmp eq i32 %number, 0
  br i1 %whole, label %turned, label %done
turned:
  %n = load i32, ptr @numbers
  %step = load i32, ptr @step
  %other = sub i32 %n, %step
  store i32 %other, ptr @step
  br label %done
done:
  ret void
stay:
  store i32 %there, ptr %there.at
  call void @stay(i32 %number, i32 %turn)
  ret void
}
define ptr @shared_turns() {
  %barriers = load ptr, ptr @barriers
  %number = call i32 @shared_number()
  %barrier = call ptr @words(ptr %barriers, i32 %number)
  %turns = getelementptr i32, ptr %barrier, i32 2
  ret ptr %turns
}
define i32 @shared_number() {
  %n = load i32, ptr @numbers
  %warps = lshr i32 %n, 5
  %number = add i32 %warps, 3
  ret i32 %number
}
define void @tell() noinline {
  %at = call ptr @shared_turns()
  %turns = load i32, ptr %at
  %more = add i32 %turns, 1
  store i32 %more, ptr %at
  ret void
}
define void @stay_for_shared() noinline {
  %at = call ptr @shared_turns()
  %turn = load i32, ptr %at
  %number = call i32 @shared_number()
  call void @stay(i32 %number, i32 %turn)
  ret void
}
define i64 @found() {
  %lo.at = getelementptr i64, ptr @given, i64 1
  %hi.at = getelementptr i64, ptr @given, i64 2
  %args = load i64, ptr @given
  %lo = load i64, ptr %lo.at
  %hi = load i64, ptr %hi.at
  %found = call i64 @SYMBOL(i64 %args, i64 %lo, i64 %hi)
  ret i64 %found
}
define void @start() {
  %found = call i64 @found()
  call void @wait(i32 0)
  %code = load i64, ptr @code
  %more = icmp ugt i64 %found, %code
  %worst = select i1 %more, i64 %found, i64 %code
  store i64 %worst, ptr @code
  %before = load i32, ptr @ended
  %ended = add i32 %before, 1
  store i32 %ended, ptr @ended
  %me = load i32, ptr @now
  %fibers = load ptr, ptr @fibers
  %fiber = call ptr @words(ptr %fibers, i32 %me)
  store i32 2, ptr %fiber
  call void @next()
  unreachable
}
define i64 @enter(i64 %args, i64 %lo, i64 %hi, i32 %block) {
entry:
  %lo.at = getelementptr i64, ptr @given, i64 1
  %hi.at = getelementptr i64, ptr @given, i64 2
  store i64 %args, ptr @given
  store i64 %lo, ptr %lo.at
  store i64 %hi, ptr %hi.at
  store i32 %block, ptr @block
  store i32 0, ptr @now
  store i32 0, ptr @ended
  store i64 0, ptr @code
  %n = load i32, ptr @numbers
  %last = sub i32 %n, 1
  %odd = trunc i32 %block to i1
  %step = select i1 %odd, i32 %last, i32 1
  store i32 %step, ptr @step
  %alone = icmp eq i32 %n, 1
  br i1 %alone, label %one, label %make
one:
  %found = call i64 @found()
  ret i64 %found
make:
  %k = phi i32 [ 0, %entry ], [ %next, %make ]
  %fibers = load ptr, ptr @fibers
  %fiber = call ptr @words(ptr %fibers, i32 %k)
  store i32 0, ptr %fiber
  %at = call ptr @context(i32 %k)
  %code = call i32 @getcontext(ptr %at)
  %link.at = getelementptr i8, ptr %at, i32 8
  store ptr null, ptr %link.at
  %stacks = load ptr, ptr @stacks
  %wide = zext i32 %k to i64
  %place = mul i64 %wide, STACK
  %stack = getelementptr i8, ptr %stacks, i64 %place
  %stack.at = getelementptr i8, ptr %at, i32 16
  store ptr %stack, ptr %stack.at
  %size.at = getelementptr i8, ptr %at, i32 32
  store i64 STACK, ptr %size.at
  call void (ptr, ptr, i32, ...) @makecontext(ptr %at, ptr @start, i32 0)
  %next = add i32 %k, 1
  %more = icmp ult i32 %next, %n
  br i1 %more, label %make, label %run
run:
  %back = call ptr @context(i32 %n)
  %first = call ptr @context(i32 0)
  %turned = call i32 @swapcontext(ptr %back, ptr %first)
  %ended = load i32, ptr @ended
  %every = icmp eq i32 %ended, %n
  %worst = load i64, ptr @code
  %result = select i1 %every, i64 %worst, i64 -1
  ret i64 %result
}
"""
RUNTIME = RUNTIME.replace("CONTEXT", str(CONTEXT)).replace("STACK", str(STACK))
