"""The compositional model learns in the world of states and shapes, through the real trainer."""

from dataclasses import replace

import pytest
import torch
import torch.multiprocessing as mp
from tiny_training import become_process, free_port
from torch.utils.data import DataLoader, Dataset

from hypvl.data.world.states import SHAPE_GROUP, STATE_GROUP, StateWorld, pairs_of
from hypvl.losses.terms import gather_processes
from hypvl.models.registry import create_model, load_model
from hypvl.papers.h2em.attention import AttentionConfig
from hypvl.papers.h2em.composition_losses import CompositionObjective
from hypvl.papers.h2em.compositional_model import (
    CompositionalConfig,
    PairVocabulary,
    composition_space,
)
from hypvl.training.config import TrainConfig
from hypvl.training.loop import Trainer
from hypvl.training.update import Step, backward, make_accelerator

WORLD = StateWorld()
VOCABULARY = PairVocabulary(
    states=tuple(STATE_GROUP),
    objects=tuple(SHAPE_GROUP),
    pairs=WORLD.split.train,
    state_parents=tuple(STATE_GROUP.values()),
    object_parents=tuple(SHAPE_GROUP.values()),
)
MODEL = CompositionalConfig(VOCABULARY, attention=AttentionConfig(layers=1, heads=4))
TRAIN = TrainConfig(
    steps=16,
    batch_size=32,
    lr=3e-3,
    optimizer="adam",
    weight_decay=1e-5,
    warmup=2,
    log_every=1,
    progress=False,
    tensorboard=False,
)


class Shown(Dataset):
    "Tokens of pictures and the numbers of their pairs."

    def __init__(self, model, split, images, of=WORLD):
        scenes = [of.scene(split, index) for index in images]
        pixels = [torch.tensor(of.render(scene).image).permute(2, 0, 1) for scene in scenes]
        self.pairs = [pairs_of(scene)[0] for scene in scenes]
        self.tokens = model.tokens(torch.stack(pixels))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, i):
        label = VOCABULARY.pairs.index(self.pairs[i])
        return {"image_tokens": self.tokens[i], "pair": torch.tensor(label)}


@pytest.fixture(scope="module")
def shown():
    return Shown(create_model(MODEL, seed=0), "train", range(0, 3320, 20))


def train(model, objective, data, out, config=TRAIN):
    torch.manual_seed(0)
    loader = DataLoader(
        data, batch_size=config.batch_size // config.accumulate, shuffle=True, drop_last=True
    )
    with pytest.warns(UserWarning, match="state_dict"):
        return Trainer(model, objective.make(), loader, config, out).fit()


def test_losses_fall_and_the_model_comes_back(shown, tmp_path):
    model = create_model(MODEL, seed=0)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    metrics = train(model, CompositionObjective(), shown, tmp_path)
    for column in ("loss", "contrast/state", "contrast/object"):
        assert metrics[column].iloc[-3:].mean() < 0.7 * metrics[column].iloc[:3].mean(), column
    assert metrics["entailment/taxonomy/own_state_parent"].notna().all()
    after = model.state_dict()
    moved = {name for name, p in after.items() if not torch.equal(p, before[name])}
    assert not any(name.startswith(("image_tower", "text_tower")) for name in moved)
    for part in ("geometry.log_curvature", "attention.blend", "prompts.words.state_parent"):
        assert part in moved
    batch = {"image_tokens": shown.tokens[:4]}
    unseen = [*WORLD.split.val_unseen, *WORLD.split.test_unseen]
    pairs = [*VOCABULARY.pairs, *unseen]
    torch.testing.assert_close(
        load_model(tmp_path).scores(batch, pairs), model.eval().scores(batch, pairs)
    )


def test_micro_batches_give_the_gradient_of_the_whole(shown, tmp_path):
    "Views without BatchNorm and dropout, one update."
    config = replace(MODEL, disentangler_layers=0, scale_init=0.1)
    found = {}
    for parts in (1, 4):
        model = create_model(config, seed=0)
        plan = replace(TRAIN, steps=1, accumulate=parts, optimizer="sgd", warmup=0, clip_grad=0.1)
        train(model, CompositionObjective(), shown, tmp_path / str(parts), plan)
        found[parts] = model.state_dict()
    start = create_model(config, seed=0).state_dict()
    for name, tensor in found[1].items():
        torch.testing.assert_close(found[4][name], tensor, rtol=1e-3, atol=1e-5, msg=name)
    assert not torch.equal(found[1]["prompts.words.state"], start["prompts.words.state"])


SAMPLES = 16  # of an update
NORMED = replace(MODEL, disentangler_layers=2, disentangler_dropout=0.0)  # scales are measured


def normed_update(batch, accelerator, pieces):
    "Loss, gradients and buffers after one update in training mode, in double precision."
    rank, processes = accelerator.process_index, accelerator.num_processes
    model = create_model(NORMED, seed=0).double().train()
    gather = gather_processes if processes > 1 else None
    step = Step(model, CompositionObjective().make(), {}, gather, processes)
    module = accelerator.prepare(step) if processes > 1 else step
    mine = {name: value.chunk(processes)[rank].chunk(pieces) for name, value in batch.items()}
    parts = [dict(zip(mine, values)) for values in zip(*mine.values())]
    result = backward(module, parts, 0, accelerator, grads=True)
    loss = gather_processes(result.loss[None])[0].mean()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    state = dict(model.views_of.state_dict()) | dict(model.log_scales.state_dict())
    return loss, grads, state, sorted(result.grads)


def worker(rank, processes, port, folder):
    "One of the processes."
    become_process(rank, processes, port)
    torch.set_num_threads(1)
    accelerator, batch = make_accelerator(device="cpu"), torch.load(folder / "batch.pt")
    found = [normed_update(batch, accelerator, pieces) for pieces in (1, 2)]
    torch.save(found, folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_batch_norms_see_the_whole_batch(shown, tmp_path):
    "In micro-batches and on two processes, in training mode."
    samples = [shown[i] for i in range(SAMPLES)]
    batch = {name: torch.stack([one[name] for one in samples]) for name in samples[0]}
    batch["image_tokens"] = batch["image_tokens"].double()
    torch.save(batch, tmp_path / "batch.pt")
    accelerator = make_accelerator(device="cpu")
    whole = normed_update(batch, accelerator, 1)
    assert whole[2]["state.1.num_batches_tracked"] == 1
    found = [normed_update(batch, accelerator, pieces) for pieces in (2, 4)]
    mp.start_processes(worker, (2, free_port(), tmp_path), 2, start_method="forkserver")
    for rank in range(2):
        found += torch.load(tmp_path / f"{rank}.pt")
    for loss, grads, state, watched in found:
        torch.testing.assert_close(loss, whole[0], rtol=1e-10, atol=0)
        torch.testing.assert_close(state, whole[2], rtol=1e-10, atol=1e-12)
        assert grads.keys() == whole[1].keys() and watched == whole[3]
        largest = max(float(grad.norm()) for grad in grads.values())
        for name, grad in whole[1].items():
            error = float((grads[name] - grad).norm())
            assert error <= 1e-8 * float(grad.norm()) + 1e-12 * largest, (name, error)


@pytest.mark.parametrize("control", ["flat", "static", "printed"])
def test_controls_train(shown, tmp_path, control):
    model, objective = MODEL, CompositionObjective()
    if control == "flat":
        model = replace(MODEL, geometry=composition_space("euclidean"))
        objective = replace(objective, entailment=0.0, hardness=1.0)
    elif control == "static":
        objective = replace(objective, entail_text="static")
    else:
        objective = replace(objective, angle_at="specific")
    plan = replace(TRAIN, steps=8)
    metrics = train(create_model(model, seed=0), objective, shown, tmp_path, plan)
    assert metrics["loss"].iloc[-1] < 0.8 * metrics["loss"].iloc[0]
    assert ("entailment/taxonomy" in metrics) == (control != "flat")
