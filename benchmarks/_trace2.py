import sys
from classes import *
task,eps,seed=sys.argv[1],float(sys.argv[2]),int(sys.argv[3])
people=people_of(task)
tree={"population": {"kind": "table", "path": "-", "user": "-", "label": "- > 0", "numeric": {"-": [0, 1]}},"algorithm": {"name": "whitened-tracking"},"privacy": {"epsilon": eps, "delta": DELTA}}
config=from_tree(tree)
plan=choose(config, problem(config, replace(people, domain=L2Ball(3.0)))).plan
made, noise, engine = ALGORITHMS[plan.algorithm].make(plan), SeededNoise(1000 + seed), InlineEngine(people)
state=made.init()
from quoron_server.algorithms.whitened.contrasts import Contrasts
K=people.loss.outputs; p=people.training.dimension
A=np.asarray(people.training.features,float); m=np.diff(people.training.offsets); w=np.repeat(1/m/len(m),m)
Q=Contrasts(1,K).matrix()
while (q:=made.request(state,noise)) is not None:
    if state.round in (0,1,3,6,11):
        B=A@state.transform
        M=made.model(state).reshape(K,p); t=A@M.T; P=np.exp(t-t.max(1,keepdims=True)); P/=P.sum(1,keepdims=True)
        QP=P@Q
        lev,_=made._law.at(state.point)
        H=np.zeros((K-1,p,K-1,p))
        for i in range(K-1):
            for j in range(K-1):
                c=((P*Q[:,i]*Q[:,j]).sum(1)-QP[:,i]*QP[:,j])*w
                H[i,:,j,:]=B.T@(c[:,None]*B)
        H=H.reshape((K-1)*p,-1)
        h=np.outer(lev,1+.15*state.doubt).ravel() if state.round else np.ones(len(H))/K
        ev=np.linalg.eigvals(H/h[:,None]).real
        print(state.round,"lev",lev,"eig",np.sort(ev)[[0,1,2,-3,-2,-1]].round(3), "W eig", np.linalg.eigvalsh(B.T@(w[:,None]*B))[[0,1,-2,-1]].round(3))
    state=made.update(state, engine.ask(q), noise).state
