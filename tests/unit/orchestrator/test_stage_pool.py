"""A stage's pool counts what is bound to each replica."""

from antiphon.orchestrator.stage_pool import Replica, StagePool


def replica(index: int) -> Replica:
    return Replica(f"talker/{index}", f"ipc://control-{index}", f"ipc://connector-{index}")


def pool_of(*indexes: int) -> StagePool:
    pool = StagePool("talker")
    for index in indexes:
        pool.join(replica(index))
    return pool


def bind(pool: StagePool) -> str:
    bound = pool.bind_least_inflight()
    assert bound is not None
    return bound.name


def test_the_replica_with_the_fewest_requests_is_bound() -> None:
    pool = pool_of(0, 1)
    assert [bind(pool) for _ in range(4)] == ["talker/0", "talker/1", "talker/0", "talker/1"]
    pool.release("talker/1")
    pool.release("talker/1")
    assert pool.inflight() == {"talker/0": 2, "talker/1": 0}
    assert [bind(pool) for _ in range(2)] == ["talker/1", "talker/1"]


def test_of_equally_loaded_replicas_the_one_bound_least_often_is_next() -> None:
    pool = pool_of(0, 1)
    first = bind(pool)
    pool.release(first)
    assert bind(pool) == "talker/1"


def test_a_replica_that_has_gone_is_not_bound_and_its_releases_are_ignored() -> None:
    pool = pool_of(0, 1)
    bind(pool)
    assert pool.leave("talker/0") == replica(0)
    assert pool.leave("talker/0") is None
    pool.release("talker/0")
    assert [bind(pool), bind(pool)] == ["talker/1", "talker/1"]
    assert (pool.num_live, pool.find("talker/0")) == (1, None)
    pool.join(replica(0))
    assert pool.inflight() == {"talker/0": 0, "talker/1": 2}


def test_a_replica_that_joins_twice_keeps_what_is_bound_to_it() -> None:
    pool = pool_of(0)
    bind(pool)
    pool.join(replica(0))
    assert pool.inflight() == {"talker/0": 1}
    pool.release("talker/0")
    assert pool.inflight() == {"talker/0": 0}


def test_an_empty_pool_binds_nothing() -> None:
    assert pool_of().bind_least_inflight() is None


def test_the_most_requests_of_a_replica_are_told_once_even_if_it_has_left() -> None:
    pool = StagePool("talker")
    pool.join(Replica("talker/0", "", ""))
    pool.join(Replica("talker/1", "", ""))
    for _ in range(4):
        pool.bind_least_inflight()
    pool.release("talker/0")
    pool.leave("talker/1")
    assert pool.take_max_inflight() == {"talker/0": 2, "talker/1": 2}
    pool.release("talker/0")
    assert pool.take_max_inflight() == {"talker/0": 1}
    assert pool.take_max_inflight() == {"talker/0": 0}
