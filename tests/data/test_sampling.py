from captioner.data.sampling import LengthBuckets

LENGTHS = [(7 * i) % 23 for i in range(103)]


def test_an_epoch_holds_every_item_once():
    batches = list(LengthBuckets(LENGTHS, 8))
    assert sorted(i for batch in batches for i in batch) == list(range(103))
    assert len(batches) == len(LengthBuckets(LENGTHS, 8)) == 13


def test_the_order_depends_on_seed_and_epoch_alone():
    sampler, again = LengthBuckets(LENGTHS, 8, seed=1), LengthBuckets(LENGTHS, 8, seed=1)
    assert list(sampler) == list(again) == list(sampler)
    again.set_epoch(1)
    assert list(again) != list(sampler)
    assert list(LengthBuckets(LENGTHS, 8, seed=2)) != list(sampler)


def test_batches_are_of_like_length():
    def padding(batches):
        return sum(max(LENGTHS[i] for i in b) * len(b) - sum(LENGTHS[i] for i in b) for b in batches)

    unsorted = [list(range(i, min(i + 8, 103))) for i in range(0, 103, 8)]
    assert padding(LengthBuckets(LENGTHS, 8)) < 0.2 * padding(unsorted)


def test_processes_share_the_batches_evenly_and_nothing_twice():
    shares = [list(LengthBuckets(LENGTHS, 8, rank=rank, world_size=3)) for rank in range(3)]
    assert [len(share) for share in shares] == [4, 4, 4]
    seen = [i for share in shares for batch in share for i in batch]
    assert len(seen) == len(set(seen)) >= 103 - 8
