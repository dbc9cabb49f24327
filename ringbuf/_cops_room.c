/* Room for the writing half of the C body: what Room.grant does where all consumers live; see room.py. */

#define _GNU_SOURCE
#include "_cops.h"

#include <time.h>

/* A writer that finds the ring full asks `grant` at most so often. */
enum { ASK_NS = 1000000 };

/* The lowest cursor of the consumers, at most `lowest`; false when only `grant` knows what to make of a slot. */
static bool writer_lowest(Writer *w, uint64_t *lowest) {
    uint64_t published = load(w->own + P_POS);
    for (size_t slot = 0; slot < w->slots; slot++) {
        const word *page = w->control + (SLOT_PAGES + slot * PAGE) / WORD;
        /* SYNC: load C_STATE, then C_CURSOR; pairs with the consumer's store of its cursor before LIVE. */
        uint64_t state = load_acquire(page + C_STATE);
        if ((state & ((1 << C_ATTACHMENT_BIT) - 1)) == SLOT_FREE || state == load(w->evicted + slot))
            continue;
        /* SYNC: load C_CURSOR before the bytes it releases are overwritten; pairs with the store of C_CURSOR. */
        uint64_t cursor = load_acquire(page + C_CURSOR);
        if ((state & ((1 << C_ATTACHMENT_BIT) - 1)) != SLOT_LIVE || published - cursor > w->capacity)
            return false;
        *lowest = cursor < *lowest ? cursor : *lowest;
    }
    return true;
}

/* Raise the limit as Room.grant does where all consumers live: DONE when they leave room, FULL when not, and SLOW
   leaves it to `grant`. The protocol between reclaiming and joining is argued in room.py. */
static outcome writer_extend(Writer *w, uint64_t need) {
    uint64_t lowest = UINT64_MAX, floor = load(w->own + P_FLOOR);
    if (!w->slots || load(w->own + P_ENDED) || !writer_lowest(w, &lowest) || lowest == UINT64_MAX)
        return SLOW;
    if (w->position + need - lowest > w->capacity)
        return FULL;
    if (lowest > floor) {
        if (lowest == load(w->own + P_POS)) {
            store(w->own + P_FLOOR_SEQ, load(w->own + P_FRAMES));
            store(w->own + P_FLOOR_SEQ_POS, lowest);
        }
        /* SYNC: store P_FLOOR, barrier, load the slots; pairs with a joining consumer's store of JOINING,
           barrier, load of P_FLOOR. */
        store_release(w->own + P_FLOOR, lowest);
        atomic_thread_fence(memory_order_seq_cst);
        if (!writer_lowest(w, &lowest))
            return SLOW;
        if (w->position + need - lowest > w->capacity)
            return FULL;
    }
    if (w->position - lowest > load(w->own + P_HIGH_WATER))
        store(w->own + P_HIGH_WATER, w->position - lowest);
    uint64_t quarter = w->capacity / 4, most = lowest + w->capacity;
    w->limit = w->position + (need > quarter ? need : quarter);
    w->limit = w->limit < most ? w->limit : most;
    return DONE;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static outcome writer_note_full(Writer *w) {
    if (!w->full_since) {
        w->full_since = now_ns();
        store(w->own + P_FULL_EVENTS, load(w->own + P_FULL_EVENTS) + 1);
    }
    return FULL;
}

static void writer_note_room(Writer *w) {
    if (w->full_since) {
        store(w->own + P_FULL_NS, load(w->own + P_FULL_NS) + now_ns() - w->full_since);
        w->full_since = 0;
    }
}

outcome writer_find_room(Writer *w, uint64_t step) {
    for (bool asked = false;; asked = true) {
        uint64_t need = writer_need(w, step);
        if (!w->shut && (int64_t)(w->limit - w->position) >= (int64_t)need) {
            if (asked)
                writer_note_room(w);
            return DONE;
        }
        if (asked)
            return writer_note_full(w);
        outcome found = w->shut ? SLOW : writer_extend(w, need);
        uint64_t spare = found == DONE ? w->limit - w->position - need : 0;
        if (found != SLOW && too_close(&w->pace, w->position, spare)) {
            uint64_t before = w->limit;
            hang_back(&w->pace, w->position);
            found = writer_extend(w, need);
            judge(&w->pace, w->limit != before);
        }
        if (found == DONE) {
            writer_note_room(w);
            return DONE;
        }
        if (found == FULL) {
            /* Whether a consumer in the way has died only `grant` can tell, which takes longer than to read what
               a ring holds: a writer that tries again and again asks it now and then. */
            uint64_t now = now_ns();
            if (now - w->asked_at < ASK_NS)
                return writer_note_full(w);
            w->asked_at = now;
        }
        uint64_t limit;
        if (!ask(w->grant, &limit, "(KK)", (unsigned long long)w->position, (unsigned long long)need))
            return FAILED;
        w->limit = limit;
        /* SYNC: the cursors are loaded in `grant` before the bytes they release are overwritten here; pairs with
           the consumers' stores of C_CURSOR. */
        atomic_thread_fence(memory_order_acquire);
    }
}
