"""Sphere and flat space: keys of each query, rows of zeros, searches, points that coincide."""

import pytest
import torch
import torch.nn.functional as F

from hypvl.geometry.spaces import Euclidean, Sphere


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_sphere_scales_queries_as_papers_scale_the_matrix():
    sphere = Sphere(6)
    unit = sphere.lift(normal(5, 6))
    matrix = sphere.logit_scale.exp() * sphere.score(unit, unit)
    slopes = [
        torch.autograd.grad(logits.logsumexp(1).sum(), sphere.logit_scale)[0]
        for logits in (matrix, sphere.logits(unit, unit))
    ]
    torch.testing.assert_close(*slopes, rtol=0, atol=1e-4)


def test_sphere_scores_keys_of_each_query():
    sphere = Sphere(6)
    unit, own = sphere.lift(normal(5, 6)), normal(5, 3, 6)
    paired = torch.stack([sphere.score(q[None], k)[0] for q, k in zip(unit, own)])
    torch.testing.assert_close(sphere.score(unit, own), paired, rtol=0, atol=1e-6)


def test_sphere_takes_unit_rows_only():
    sphere, features = Sphere(6), normal(5, 6)
    sphere.check_points(sphere.lift(features).bfloat16())
    message = "image_points: rows must have length 1 on a sphere, got one off"
    with pytest.raises(ValueError, match=message):
        sphere.check_points(features, "image_points")


def test_row_of_zeros_has_score_and_gradient_zero():
    sphere, features = Sphere(6), normal(5, 6)
    leaf = torch.cat([features, torch.zeros(1, 6)]).requires_grad_()
    points = sphere.lift(leaf)
    sphere.check_points(points)
    assert sphere.score(points, sphere.lift(features))[-1].tolist() == [0.0] * 5
    (flow,) = torch.autograd.grad(sphere.contrast(points, points)[0].sum(), leaf)
    assert flow[:-1].abs().amin(0).gt(0).all()
    assert flow.abs().max() < 100
    assert flow[-1].tolist() == [0.0] * 6


def test_flat_angle_of_coincident_points():
    space, x = Euclidean(3).double(), normal(6, 3, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(space.angles(x, x).sum(), x)
    assert slope.isfinite().all()
    for one in normal(50, 1, 16):  # whatever the rounding of the length
        assert Euclidean(2).angles(one, one).item() == 0


def test_flat_score_search_and_angle_terms():
    space = Euclidean(3).double()
    x, y = normal(2, 6, 3, dtype=torch.float64)
    score = space.score(x, y)
    torch.testing.assert_close(score, -(x[:, None] - y).norm(dim=-1), rtol=0, atol=1e-9)
    own = space.score(x, torch.stack([y, x], 1))[:, 0]
    torch.testing.assert_close(own, score.diagonal(), rtol=0, atol=1e-9)
    queries, keys = space.search_vectors(x, "query"), space.search_vectors(y, "key")
    assert torch.equal((queries @ keys.mT).argsort(), score.argsort())
    A, B = space.angle_terms(space.norm(x)[:, None], space.norm(y))
    theta = F.cosine_similarity(x[:, None], y, dim=-1).acos()
    found = torch.atan2(theta.sin(), A * theta.cos() - B)
    torch.testing.assert_close(found, space.angles(x, y), rtol=0, atol=1e-7)
